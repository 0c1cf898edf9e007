"""CapsuleNorm against its words in numpy; masks, small batches, what is remembered, classes of unequal frequency."""

import numpy as np
import pytest
import torch

from torchcaps.capsules import Capsules
from torchcaps.nn import BatchNorm2d, CapsuleNorm, ConvCaps2d, EMRouting, PrimaryMatrixCaps


def inputs(*positions, batch_size=3, num_types=4, size=6, dtype=torch.float64):
    """Poses and logits whose types have means and spreads of their own."""
    spread = torch.linspace(0.5, 3, num_types, dtype=dtype)
    logits = spread * (torch.randn(batch_size, *positions, num_types, dtype=dtype) + 1)
    poses = spread[:, None] * (torch.randn(batch_size, *positions, num_types, size, dtype=dtype) - 2)
    return poses, logits


def standardised(values, mask, statistics, eps=1e-5):
    """(B, N, C, D) in loops: the values that count for each one are gathered and measured."""
    out = np.zeros_like(values)
    for b, n, c in np.ndindex(values.shape[:3]):
        if not mask[b, n]:
            continue
        examples = [b] if statistics == "example" else range(values.shape[0])
        group = np.concatenate([values[e, p, c] for e in examples for p in np.flatnonzero(mask[e])])
        out[b, n, c] = (values[b, n, c] - group.mean()) / np.sqrt(group.var() + eps)
    return out


@pytest.mark.parametrize("statistics", ["batch", "example"])
@pytest.mark.parametrize("positions", [(), (5,), (3, 2)])
@pytest.mark.parametrize("masked", [False, True])
def test_like_loops(statistics, positions, masked):
    poses, logits = inputs(*positions)
    mask = torch.rand(3, *positions) < 0.6 if masked else None
    if mask is not None:
        mask[1] = True
        poses[~mask], logits[~mask] = float("nan"), float("nan")  # what does not exist may hold anything
    norm = CapsuleNorm(4, statistics=statistics, dtype=torch.float64)
    found = norm(poses, logits, mask)
    flat_mask = np.ones((3, poses[0, ..., 0, 0].numel()), bool) if mask is None else mask.reshape(3, -1).numpy()
    expected_poses = standardised(poses.reshape(3, -1, 4, 6).numpy(), flat_mask, statistics)
    expected_logits = standardised(logits.reshape(3, -1, 4, 1).numpy(), flat_mask, statistics)
    activations = np.where(flat_mask[..., None], 1 / (1 + np.exp(-expected_logits[..., 0])), 0)
    np.testing.assert_allclose(found.poses.reshape(3, -1, 4, 6).detach(), expected_poses, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(found.activations.reshape(3, -1, 4).detach(), activations, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("statistics", ["batch", "example"])
def test_gradients(statistics):
    poses, logits = inputs(2, 2, batch_size=2, num_types=2, size=3)
    mask = torch.tensor([[[True, True], [False, True]], [[True, False], [True, True]]])
    norm = CapsuleNorm(2, statistics=statistics, pose_affine=True, logit_affine=True, dtype=torch.float64)
    for given in (None, mask):
        assert torch.autograd.gradcheck(
            lambda p, x, *_: tuple(norm(p, x, given)),  # noqa: B023 (called at once)
            (poses.requires_grad_(), logits.requires_grad_(), *norm.parameters()),
        )


def test_evaluation_uses_what_training_has_seen():
    norm = CapsuleNorm(4, momentum=None, dtype=torch.float64)
    batches = [inputs(3, 3, batch_size=8) for _ in range(5)]
    for batch in batches:
        norm(*batch)
    poses = torch.cat([poses for poses, _ in batches])
    expected = torch.stack([poses.mean((0, 1, 2, 4)), poses.var((0, 1, 2, 4), correction=0)])
    torch.testing.assert_close(norm.running[:2], expected)
    poses, logits = batches[0]
    found = norm.eval()(poses, logits)
    mean, variance = norm.running[2:]
    torch.testing.assert_close(found.activations, ((logits - mean) / (variance + 1e-5).sqrt()).sigmoid())
    one_by_one = [norm(poses[i : i + 1], logits[i : i + 1]).poses for i in range(8)]
    torch.testing.assert_close(torch.cat(one_by_one), found.poses)


def test_examples_do_not_depend_on_the_batch():
    norm = CapsuleNorm(4, statistics="example", dtype=torch.float64)
    poses, logits = inputs(3, 3)
    torch.testing.assert_close(norm(poses, logits).poses[1:2], norm(poses[1:2], logits[1:2]).poses)
    assert not list(norm.buffers())


def test_logits_are_not_cut_off():
    """Logits of 50 and 60 both have activation 1; the norm tells them apart."""
    norm = CapsuleNorm(1)
    activations = norm(torch.randn(2, 1, 4), torch.tensor([[50.0], [60.0]])).activations
    assert activations[1] - activations[0] > 0.4


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e6])
@pytest.mark.parametrize("statistics", ["batch", "example"])
def test_any_size_of_numbers(size, statistics):
    poses, logits = (size * part for part in inputs(3, dtype=torch.float32))
    equal = torch.full_like(poses, size), torch.full_like(logits, size)
    for given in ((poses, logits), equal):
        leaves = [part.requires_grad_() for part in given]
        found = CapsuleNorm(4, statistics=statistics)(*leaves)
        gradients = torch.autograd.grad([part.sum() for part in found], leaves)
        assert all(part.isfinite().all() for part in (*found, *gradients))


def test_a_batch_of_one_class_logit_learns():
    """One value has no spread of its own; it is measured by what was seen before."""
    norm = CapsuleNorm(3, logit_affine=True)
    for _ in range(50):
        norm(torch.randn(1, 3, 4), 5 + 2 * torch.randn(1, 3))
    logits = torch.tensor([[5.0, 9.0, 1.0]], requires_grad=True)
    activations = norm(torch.randn(1, 3, 4), logits).activations
    assert activations[0, 1] > 0.6 > 0.4 > activations[0, 2]
    assert torch.autograd.grad(activations[0, 0], logits)[0][0, 0] > 0.01
    assert ((norm.running[2] - 5).abs() < 2).all()
    assert ((norm.running[3] > 1) & (norm.running[3] < 12)).all()


def test_frequent_classes_stay_frequent():
    """Where features say nothing the frequent class is the answer, also after a norm that gives classes equal means."""
    torch.manual_seed(0)
    norm = CapsuleNorm(2, logit_affine=True)
    weight = torch.zeros(2, 4, requires_grad=True)
    optimizer = torch.optim.Adam([weight, *norm.parameters()], lr=0.05)
    for _ in range(200):
        labels = (torch.rand(64) < 0.1).long()
        logits = torch.randn(64, 4) @ weight.T + 0.1 * torch.randn(64, 2)
        activations = norm(torch.randn(64, 2, 3), logits).activations
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(activations, labels).backward()
        optimizer.step()
    with torch.no_grad():
        answers = norm.eval()(torch.randn(500, 2, 3), 0.1 * torch.randn(500, 2)).activations.argmax(1)
    assert (answers == 0).float().mean() > 0.95


def test_layers_hand_over_logits_and_masks():
    layer = ConvCaps2d(3, 4, 16, 16, 3, pose="matrix", routing=EMRouting(), norm=CapsuleNorm(4)).double()
    children = Capsules(torch.randn(2, 6, 6, 3, 16).double(), torch.rand(2, 6, 6, 3).double())
    mask = torch.ones(2, 6, 6, dtype=torch.bool)
    mask[0, :, 4:] = False
    norm, layer.norm = layer.norm, None
    plain = layer.route(children, mask=mask)
    layer.norm = norm
    found = layer.route(children, mask=mask, return_trace=True)
    expected = norm(plain.capsules.poses, plain.logits, layer.output_mask(mask))
    torch.testing.assert_close(tuple(found.capsules), tuple(expected))
    torch.testing.assert_close(found.trace[-1].poses, plain.capsules.poses)
    assert found.capsules.activations[0, :, 2:].eq(0).all()


def test_primary_capsules_hand_over_logits():
    primary = PrimaryMatrixCaps(5, 3, norm=CapsuleNorm(3))
    capsules = primary(100 * torch.randn(4, 5, 6, 6))
    assert 0.3 < capsules.activations.mean() < 0.7
    assert capsules.poses.std().item() == pytest.approx(1, abs=0.05)


def test_export_of_a_layer_with_norms():
    layer = ConvCaps2d(2, 3, 16, 16, 3, pose="matrix", routing=EMRouting(num_iterations=2), norm=CapsuleNorm(3))
    children = Capsules(torch.randn(2, 5, 5, 2, 16), torch.rand(2, 5, 5, 2))
    layer.train()(children)
    program = torch.export.export(layer.eval(), (children,))
    torch.testing.assert_close(tuple(program.module()(children)), tuple(layer(children)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("poses", "logits", "words"),
    [
        (torch.randn(2, 5, 3), torch.randn(2, 5), r"C = 4 types, got \(2, 5, 3\)"),
        (
            torch.randn(2, 4, 3),
            torch.randn(2, 5),
            r"logits must have shape that of the poses without the last axis = \(2, 4\)",
        ),
    ],
)
def test_errors(poses, logits, words):
    with pytest.raises(ValueError, match=words):
        CapsuleNorm(4)(poses, logits)
    with pytest.raises(ValueError, match="statistics must be one of"):
        CapsuleNorm(4, statistics="layer")
    with pytest.raises(ValueError, match=r"norm must be CapsuleNorm\(4\)"):
        ConvCaps2d(3, 4, 16, 16, 3, pose="matrix", routing=EMRouting(), norm=CapsuleNorm(3))


def test_batch_norm_of_one_process_is_torchs():
    images = torch.randn(4, 3, 5, 5)
    ours, theirs = BatchNorm2d(3), torch.nn.BatchNorm2d(3)
    assert torch.equal(ours(images), theirs(images))
    assert torch.equal(ours.running_var, theirs.running_var)
