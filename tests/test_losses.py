"""Losses: formulas as loops, known mistakes, gradients at exact zeros, compilation, messages."""

import math

import pytest
import torch
from torch import nn

from torchcaps import losses
from torchcaps.losses import (
    ActivationCrossEntropy,
    CombinedLoss,
    MarginLoss,
    ReconstructionLoss,
    SoftmaxCrossEntropy,
    SpreadLoss,
    activation_cross_entropy,
    combined_loss,
    margin_loss,
    reconstruction_loss,
    softmax_cross_entropy,
    spread_loss,
)


def uniform(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


ACTIVATIONS = uniform(5, 4)
TARGETS = torch.tensor([0, 3, 1, 1, 2])
MULTI_HOT = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1]])
WEIGHTS = torch.tensor([1.0, 0.5, 3.0, 0.0], dtype=torch.float64)


def slow_margin(activations, multi_hot, weights=(1, 1, 1, 1), upper=0.9, lower=0.1, down=0.5):
    rows = []
    for row, present in zip(activations.tolist(), multi_hot.tolist(), strict=True):
        total = 0.0
        for activation, is_present, weight in zip(row, present, weights, strict=True):
            if is_present:
                total += weight * max(0.0, upper - activation) ** 2
            else:
                total += weight * down * max(0.0, activation - lower) ** 2
        rows.append(total)
    return torch.tensor(rows, dtype=torch.float64)


def slow_spread(activations, targets, margin):
    return torch.tensor(
        [
            sum(max(0.0, margin - (row[target] - other)) ** 2 for i, other in enumerate(row) if i != target)
            for row, target in zip(activations.tolist(), targets.tolist(), strict=True)
        ],
        dtype=torch.float64,
    )


def slow_cross_entropy(activations, targets):
    rows = zip(activations.tolist(), targets.tolist(), strict=True)
    return torch.tensor([-math.log(row[target] / sum(row)) for row, target in rows], dtype=torch.float64)


def slow_reconstruction(reconstructions, images):
    pairs = zip(reconstructions.flatten(1).tolist(), images.flatten(1).tolist(), strict=True)
    return torch.tensor(
        [0.0005 * sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) for pair in pairs],
        dtype=torch.float64,
    )


class TestFormulas:
    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
    def test_margin_with_indices(self, dtype):
        expected = slow_margin(ACTIVATIONS, nn.functional.one_hot(TARGETS, 4))
        torch.testing.assert_close(margin_loss(ACTIVATIONS, TARGETS.to(dtype), reduction="none"), expected)

    @pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32, torch.float64])
    def test_margin_with_several_classes(self, dtype):
        loss = margin_loss(ACTIVATIONS, MULTI_HOT.to(dtype), reduction="none")
        torch.testing.assert_close(loss, slow_margin(ACTIVATIONS, MULTI_HOT))

    def test_margin_options(self):
        options = {"positive_margin": 0.8, "negative_margin": 0.3, "negative_weight": 0.25}
        expected = slow_margin(ACTIVATIONS, MULTI_HOT, WEIGHTS.tolist(), 0.8, 0.3, 0.25)
        loss = margin_loss(ACTIVATIONS, MULTI_HOT, class_weights=WEIGHTS, reduction="none", **options)
        torch.testing.assert_close(loss, expected)
        module = MarginLoss(class_weights=WEIGHTS, reduction="none", **options)
        torch.testing.assert_close(module(ACTIVATIONS, MULTI_HOT), expected)

    @pytest.mark.parametrize("margin", [0.2, 0.9, 1.0])
    def test_spread(self, margin):
        expected = slow_spread(ACTIVATIONS, TARGETS, margin)
        for given in (margin, torch.tensor(margin, dtype=torch.float64)):
            torch.testing.assert_close(spread_loss(ACTIVATIONS, TARGETS, given, reduction="none"), expected)
        weighted = SpreadLoss(class_weights=WEIGHTS, reduction="none")(ACTIVATIONS, TARGETS, margin)
        torch.testing.assert_close(weighted, expected * WEIGHTS[TARGETS])

    def test_spread_of_equal_activations_counts_only_the_other_classes(self):
        loss = spread_loss(torch.full((1, 5), 0.3), torch.tensor([2]), 0.5)
        assert loss.item() == pytest.approx(4 * 0.25)  # 5 * 0.25 if the true class were counted

    def test_cross_entropy(self):
        expected = slow_cross_entropy(ACTIVATIONS, TARGETS)
        loss = activation_cross_entropy(ACTIVATIONS, TARGETS, reduction="none")
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
        exact = ActivationCrossEntropy(eps=0.0, class_weights=WEIGHTS, reduction="none")(ACTIVATIONS, TARGETS)
        torch.testing.assert_close(exact, expected * WEIGHTS[TARGETS])

    def test_softmax_cross_entropy_takes_activations_as_logits(self):
        rows = zip(ACTIVATIONS.tolist(), TARGETS.tolist(), strict=True)
        expected = [-math.log(math.exp(row[t]) / sum(math.exp(a) for a in row)) for row, t in rows]
        expected = torch.tensor(expected, dtype=torch.float64)
        found = softmax_cross_entropy(ACTIVATIONS, TARGETS, reduction="none")
        torch.testing.assert_close(found, expected)
        weighted = SoftmaxCrossEntropy(class_weights=WEIGHTS, reduction="none")(ACTIVATIONS, TARGETS)
        torch.testing.assert_close(weighted, WEIGHTS[TARGETS] * expected)
        least = softmax_cross_entropy(torch.eye(4)[TARGETS], TARGETS).item()
        assert least == pytest.approx(math.log(1 + 3 / math.e))  # never at rest

    def test_cross_entropy_takes_activations_not_logits(self):
        as_logits = nn.functional.cross_entropy(ACTIVATIONS, TARGETS, reduction="none")
        ours = activation_cross_entropy(ACTIVATIONS, TARGETS, reduction="none")
        assert (as_logits - ours).abs().max() > 0.1

    @pytest.mark.parametrize("shape", [(3, 10), (3, 2, 5, 4)])
    def test_reconstruction(self, shape):
        first, second = uniform(*shape), uniform(*shape, seed=1)
        loss = reconstruction_loss(first, second, reduction="none")
        torch.testing.assert_close(loss, slow_reconstruction(first, second))

    def test_combined(self):
        pixels, images = uniform(5, 6), uniform(5, 6, seed=1)
        reconstruction = slow_reconstruction(pixels, images)
        arguments = (ACTIVATIONS, TARGETS, pixels, images)
        margin = slow_margin(ACTIVATIONS, nn.functional.one_hot(TARGETS, 4))
        torch.testing.assert_close(combined_loss(*arguments), (margin + reconstruction).mean())
        torch.testing.assert_close(CombinedLoss()(*arguments), (margin + reconstruction).mean())
        spread = slow_spread(ACTIVATIONS, TARGETS, 0.4)
        loss = combined_loss(
            *arguments, classification=spread_loss, margin=0.4, reconstruction_weight=0.005, reduction="none"
        )
        torch.testing.assert_close(loss, spread + 10 * reconstruction)
        module = CombinedLoss(SpreadLoss(reduction="sum"), ReconstructionLoss(weight=0.005, reduction="sum"))
        torch.testing.assert_close(module(*arguments, margin=0.4), (spread + 10 * reconstruction).sum())

    @pytest.mark.parametrize(
        ("function", "module", "arguments"),
        [
            (margin_loss, MarginLoss, (ACTIVATIONS, TARGETS)),
            (spread_loss, SpreadLoss, (ACTIVATIONS, TARGETS, 0.5)),
            (activation_cross_entropy, ActivationCrossEntropy, (ACTIVATIONS, TARGETS)),
            (softmax_cross_entropy, SoftmaxCrossEntropy, (ACTIVATIONS, TARGETS)),
            (reconstruction_loss, ReconstructionLoss, (ACTIVATIONS, uniform(5, 4, seed=3))),
        ],
    )
    def test_reductions_of_functions_and_modules(self, function, module, arguments):
        each = function(*arguments, reduction="none")
        assert each.shape == (5,)
        for reduction, expected in {"none": each, "sum": each.sum(), "mean": each.mean()}.items():
            torch.testing.assert_close(function(*arguments, reduction=reduction), expected)
            torch.testing.assert_close(module(reduction=reduction)(*arguments), expected)
        torch.testing.assert_close(function(*arguments), each.mean())
        torch.testing.assert_close(module()(*arguments), each.mean())


class TestKnownMistakes:
    """The wrong version is written here and must differ from ours where the formula says so."""

    def test_margin_loss_is_squared(self):
        def not_squared(activations, present):
            low, high = torch.relu(0.9 - activations), torch.relu(activations - 0.1)
            return (present * low + 0.5 * (1 - present) * high).sum(1)

        present = nn.functional.one_hot(TARGETS, 4).double()
        expected = slow_margin(ACTIVATIONS, present)
        torch.testing.assert_close(margin_loss(ACTIVATIONS, TARGETS, reduction="none"), expected)
        with pytest.raises(AssertionError):
            torch.testing.assert_close(not_squared(ACTIVATIONS, present), expected)

    def test_margin_gradient_fades_towards_the_margin(self):
        activations = torch.tensor([[0.89, 0.0], [0.49, 0.0]], requires_grad=True)
        margin_loss(activations, torch.tensor([0, 0]), reduction="sum").backward()
        # Squared: -2 (0.9 - a); without the square it would be -1 for both.
        torch.testing.assert_close(activations.grad[:, 0], torch.tensor([-0.02, -0.82]), rtol=1e-4, atol=1e-5)

    def test_reconstruction_is_a_sum_over_pixels(self):
        def averaged(reconstructions, images):
            return 0.0005 * (reconstructions - images).square().mean()

        images, black = uniform(3, 1, 28, 28), torch.zeros(3, 1, 28, 28, dtype=torch.float64)
        ours, wrong = reconstruction_loss(black, images), averaged(black, images)
        torch.testing.assert_close(ours, slow_reconstruction(black, images).mean())
        assert (ours / wrong).item() == pytest.approx(784)

    def test_reconstruction_does_not_grow_with_the_batch(self):
        images = uniform(2, 784)
        once = reconstruction_loss(torch.zeros_like(images), images)
        twice = reconstruction_loss(torch.zeros(4, 784, dtype=torch.float64), images.repeat(2, 1))
        torch.testing.assert_close(once, twice)


class TestGradients:
    @pytest.mark.parametrize(
        "loss",
        [
            lambda a: margin_loss(a, TARGETS),
            lambda a: margin_loss(a, MULTI_HOT, class_weights=WEIGHTS),
            lambda a: spread_loss(a, TARGETS, 0.9),
            lambda a: activation_cross_entropy(a, TARGETS, class_weights=WEIGHTS),
            lambda a: softmax_cross_entropy(a, TARGETS, class_weights=WEIGHTS),
            lambda a: combined_loss(a, TARGETS, a, torch.zeros_like(a)),
        ],
    )
    def test_gradcheck(self, loss):
        assert torch.autograd.gradcheck(loss, (ACTIVATIONS.clone().requires_grad_(),))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
    def test_cross_entropy_is_finite_at_exact_zeros(self, dtype):
        rows = [[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [1e-30, 0.0, 1.0]]
        activations = torch.tensor(rows, dtype=dtype, requires_grad=True)
        loss = activation_cross_entropy(activations, torch.tensor([0, 0, 0, 0]), reduction="none")
        loss.sum().backward()
        assert torch.isfinite(loss).all()
        assert torch.isfinite(activations.grad).all()
        assert loss[0].item() == pytest.approx(math.log(3), rel=1e-2)
        assert loss[2].item() == pytest.approx(0.0, abs=1e-5)
        assert (activations.grad[:2, 0] < 0).all()  # a class that is wrongly silent is pushed up

    @pytest.mark.parametrize("value", [0.0, 1.0])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_exact_zeros_and_ones_are_finite(self, value, dtype):
        activations = torch.full((3, 4), value, dtype=dtype, requires_grad=True)
        targets = torch.tensor([0, 1, 2])
        loss = margin_loss(activations, targets) + spread_loss(activations, targets, 0.9)
        loss.backward()
        assert loss.dtype == dtype
        assert torch.isfinite(loss)
        assert torch.isfinite(activations.grad).all()

    def test_modules_move_their_class_weights(self):
        for module in (MarginLoss, SpreadLoss, ActivationCrossEntropy, SoftmaxCrossEntropy):
            assert module(class_weights=WEIGHTS).float().class_weights.dtype == torch.float32


class TestCompile:
    @pytest.mark.parametrize(
        ("module", "extra"),
        [
            (MarginLoss(class_weights=WEIGHTS), ()),
            (SpreadLoss(class_weights=WEIGHTS), (0.3,)),
            (SpreadLoss(), (torch.tensor(0.3, dtype=torch.float64),)),
            (ActivationCrossEntropy(class_weights=WEIGHTS), ()),
            (SoftmaxCrossEntropy(class_weights=WEIGHTS), ()),
            (CombinedLoss(), (uniform(5, 6), uniform(5, 6, seed=1))),
        ],
    )
    def test_one_graph_with_the_same_values_and_gradients(self, module, extra):
        torch.compiler.reset()
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        gradients = []
        for call in (module, compiled):
            activations = ACTIVATIONS.clone().requires_grad_()
            loss = call(activations, TARGETS, *extra)
            gradients.append((loss.detach(), *torch.autograd.grad(loss, activations)))
        torch.testing.assert_close(gradients[0], gradients[1])

    def test_multi_hot_and_reconstruction_compile(self):
        torch.compiler.reset()
        compiled = torch.compile(combined_loss, backend="aot_eager", fullgraph=True)
        arguments = (ACTIVATIONS, MULTI_HOT, uniform(5, 6), uniform(5, 6, seed=1))
        torch.testing.assert_close(compiled(*arguments), combined_loss(*arguments))


A, T = ACTIVATIONS, TARGETS


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: margin_loss(A.long(), T), TypeError, "margin_loss: activations must be floating point"),
        (lambda: margin_loss(A[None], T), ValueError, r"shape \(B, J\), got \(1, 5, 4\).*not the poses"),
        (
            lambda: margin_loss(A, T.double()),
            TypeError,
            r"must be integers, got torch.float64.*targets.long\(\)",
        ),
        (lambda: margin_loss(A, T == 1), TypeError, "class indices must be integers, got torch.bool"),
        (lambda: margin_loss(A, T[:3]), ValueError, r"indices of shape \(5,\), one per example, got \(3,\)"),
        (lambda: margin_loss(A, MULTI_HOT[:, :3]), ValueError, r"multi-hot of shape \(5, 4\), got \(5, 3\)"),
        (lambda: margin_loss(A, MULTI_HOT.cfloat()), TypeError, "must be real or bool, got torch.complex64"),
        (lambda: margin_loss(A, T, class_weights=WEIGHTS[:2]), ValueError, r"shape \(4,\), one per class"),
        (lambda: margin_loss(A, T, reduction="avg"), ValueError, "reduction must be one of.*got 'avg'"),
        (lambda: spread_loss(A, MULTI_HOT, 0.5), ValueError, r"spread_loss: targets.*targets.argmax\(1\)"),
        (lambda: spread_loss(A, T.float(), 0.5), TypeError, "spread_loss: class indices must be integers"),
        (lambda: spread_loss(A, T, torch.ones(5)), ValueError, r"margin must be a number.*got \(5,\)"),
        (
            lambda: activation_cross_entropy(A, MULTI_HOT),
            ValueError,
            r"activation_cross_entropy: targets must be class indices of shape \(5,\)",
        ),
        (lambda: reconstruction_loss(A, A[:, :2]), ValueError, r"\(5, 4\) and \(5, 2\); images.flatten\(1\)"),
        (lambda: reconstruction_loss(A[0], A[0]), ValueError, r"must have one shape \(B, ...\)"),
        (
            lambda: reconstruction_loss(A, A.byte()),
            TypeError,
            r"got torch.uint8; scale.*images.float\(\) / 255",
        ),
        (lambda: reconstruction_loss(A.long(), A), TypeError, "reconstructions must be floating point"),
        (lambda: CombinedLoss(MarginLoss(reduction="sum")), ValueError, "got 'sum' and 'mean'.*the same one"),
        (lambda: CombinedLoss(nn.Identity()), ValueError, "one reduction, got None and 'mean'"),
        (lambda: SpreadLoss(reduction="max"), ValueError, "reduction must be one of"),
    ],
)
def test_messages(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("index", [-1, 4])
def test_an_index_out_of_range_is_never_silent(index):
    targets = torch.tensor([0, 0, 0, 0, index])
    for call in (margin_loss, activation_cross_entropy, softmax_cross_entropy, lambda a, t: spread_loss(a, t, 0.5)):
        with pytest.raises(RuntimeError, match="out of bounds"):
            call(ACTIVATIONS, targets)


def test_every_public_name_exists():
    assert all(hasattr(losses, name) for name in losses.__all__)


@pytest.mark.parametrize("loss", [margin_loss, lambda *args, **options: spread_loss(*args, margin=0.5, **options)])
def test_balanced_losses_do_not_grow_with_the_number_of_classes(loss):
    """The same for ten classes; with more, a gradient towards absent classes that is as large as with ten."""
    torch.manual_seed(0)
    ten, target = torch.rand(3, 10), torch.tensor([0, 4, 9])
    torch.testing.assert_close(loss(ten, target, balanced=True), loss(ten, target))
    sums = {}
    for num_classes in (10, 100, 1000):
        activations = torch.full((2, num_classes), 0.3, requires_grad=True)
        loss(activations, torch.tensor([1, 2]), balanced=True).backward()
        absent = torch.ones(2, num_classes, dtype=torch.bool).scatter(1, torch.tensor([[1], [2]]), False)
        sums[num_classes] = float(activations.grad[absent].sum())
    assert sums[1000] == pytest.approx(sums[10], rel=1e-4)
    assert sums[100] == pytest.approx(sums[10], rel=1e-4)


def test_modules_pass_balance_on():
    activations, targets = torch.rand(3, 50), torch.tensor([0, 1, 2])
    found = MarginLoss(balanced=True)(activations, targets)
    torch.testing.assert_close(found, margin_loss(activations, targets, balanced=True))
    found = SpreadLoss(balanced=True)(activations, targets, 0.4)
    torch.testing.assert_close(found, spread_loss(activations, targets, 0.4, balanced=True))
