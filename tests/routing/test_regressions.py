"""Wrong mathematics found in public code. Each mistake is written out and must be caught by a check that ours pass.

A check takes a routing and raises AssertionError. A wrong version differs from a right one in the mistake alone:
`em_by_hand` and `dynamic_by_hand` without a mistake pass every check, too.
"""

import math
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d
from torch.testing import assert_close

from support.algorithms import competitors
from support.cases import rand, randn
from torchcaps.capsules import Capsules
from torchcaps.routing import dynamic_routing, em_routing, entropy_routing, kmeans_routing, uniform_routing
from torchcaps.votes import ConvVotes
from torchcaps.windows import Windows

pytestmark = pytest.mark.usefixtures("on_reference")
BETAS = {"beta_a": 0.3, "beta_u": -0.2}
em = partial(em_routing, **BETAS)


def caught(check, *wrong) -> None:
    with pytest.raises(AssertionError):
        check(*wrong)


# 1 and 2: dynamic routing


def dynamic_by_hand(votes: Tensor, *, softmax_axis: int = -1, average_logits: bool = False, kept: dict | None = None):
    """Couplings and poses; mistakes: softmax over children, logits averaged over the batch or kept across batches."""
    logits = votes.new_zeros(votes.shape[:3])
    if kept is not None:
        logits = logits + kept.get("logits", 0.0)
    for iteration in range(3):
        coupling = logits.softmax(softmax_axis)
        sums = (coupling.unsqueeze(-1) * votes).sum(1)
        lengths = sums.norm(dim=-1, keepdim=True)
        poses = sums * lengths / (1 + lengths**2)
        if iteration < 2:
            agreement = (votes * poses.unsqueeze(1)).sum(-1)
            logits = logits + (agreement.mean(0, keepdim=True) if average_logits else agreement)
    if kept is not None:
        kept["logits"] = logits.mean(0)
    return coupling, poses


def dynamic(votes: Tensor):
    result = dynamic_routing(votes)
    return result.coupling, result.capsules.poses


def check_children_share_themselves(routing) -> None:
    coupling, _ = routing(randn(2, 9, 4, 3))
    assert_close(coupling.sum(-1), torch.ones(2, 9, dtype=torch.float64))


def check_examples_are_independent(routing) -> None:
    votes = 3 * randn(4, 9, 3, 2)
    _, together = routing(votes)
    alone = torch.cat([routing(example)[1] for example in votes.split(1)])
    assert_close(together, alone)


def test_dynamic_by_hand_is_right():
    votes = randn(2, 9, 4, 3)
    for ours, theirs in zip(dynamic(votes), dynamic_by_hand(votes)):
        assert_close(ours, theirs)


def test_softmax_over_children_is_caught():
    others = (uniform_routing, kmeans_routing, entropy_routing)
    for routing in (dynamic, dynamic_by_hand, *(lambda v, f=f: (f(v).coupling, None) for f in others)):
        check_children_share_themselves(routing)
    check_children_share_themselves(lambda votes: (em(votes, rand(*votes.shape[:2])).coupling, None))
    caught(check_children_share_themselves, partial(dynamic_by_hand, softmax_axis=1))


def test_logits_of_other_examples_are_caught():
    check_examples_are_independent(dynamic)
    check_examples_are_independent(dynamic_by_hand)
    caught(check_examples_are_independent, partial(dynamic_by_hand, average_logits=True))
    caught(check_examples_are_independent, partial(dynamic_by_hand, kept={}))


# 3, 6 and 7: EM routing


def em_by_hand(
    votes: Tensor,
    activations: Tensor,
    initial_logits: Tensor | None = None,
    *,
    renormalise: bool = False,
    drop_activation: bool = False,
    root_in_density: bool = False,
    root_in_cost: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """R, mu and a for dense votes, betas as above and lambda kappa = 1, mbar = 1."""
    beta_a, beta_u = BETAS["beta_a"], BETAS["beta_u"]
    coupling = (votes.new_zeros(votes.shape[:3]) if initial_logits is None else initial_logits).softmax(-1)
    for iteration in range(3):
        weighted = coupling * activations.unsqueeze(-1)
        if renormalise:
            weighted = weighted / weighted.sum(-1, keepdim=True).clamp_min(1e-12)
        mass = weighted.sum(1)
        share = (weighted / mass.unsqueeze(1)).unsqueeze(-1)
        mean = (share * votes).sum(1)
        deviation = (votes - mean.unsqueeze(1)).square()
        variance = (share * deviation).sum(1) + 1e-6
        log_width = variance.log() if root_in_cost else 0.5 * variance.log()
        activation = torch.sigmoid(beta_a - (beta_u + log_width).sum(-1) * mass)
        if iteration < 2:
            spread = (variance.sqrt() if root_in_density else variance).unsqueeze(1)
            logits = -0.5 * (deviation / spread + (2 * math.pi * spread).log()).sum(-1)
            if not drop_activation:
                logits = logits + activation.log().unsqueeze(1)
            coupling = logits.softmax(-1)
    return coupling, mean, activation


def em_as_by_hand(votes: Tensor, activations: Tensor, initial_logits: Tensor | None = None):
    result = em(votes, activations, initial_logits=initial_logits, lambda_schedule=1.0, cost_scale="paper")
    return result.coupling, result.capsules.poses, result.capsules.activations


def check_activations_weigh(routing) -> None:
    """A child that is hardly there has hardly a vote; cancelled activations would make it as good as any other."""
    votes, activations = randn(2, 8, 3, 4), rand(2, 8)
    activations[:, 2] = 1e-9
    _, mean, _ = routing(votes, activations)
    votes[:, 2] += 5
    assert_close(routing(votes, activations)[1], mean, rtol=0, atol=1e-5)


def check_responsibilities(routing) -> None:
    """After two rounds R is the posterior of torch's own Gaussians: weighted moments, log_prob, Bayes' rule."""
    votes, activations, logits = randn(1, 8, 3, 2), rand(1, 8), randn(1, 8, 3)
    coupling, _, _ = routing(votes, activations, logits)
    for _ in range(2):
        weights = (logits.softmax(-1) * activations.unsqueeze(-1))[0]
        posterior = []
        for weight, points in zip(weights.unbind(-1), votes[0].unbind(-2)):
            mass = weight.sum()
            mean = weight @ points / mass
            variance = weight @ (points - mean) ** 2 / mass + 1e-6
            normal = torch.distributions.MultivariateNormal(mean, variance.diag())
            log_widths = normal.entropy() - (1 + math.log(2 * math.pi))  # the entropy of two unit Gaussians
            activation = torch.sigmoid(BETAS["beta_a"] - mass * (2 * BETAS["beta_u"] + log_widths))
            posterior.append(activation.log() + normal.log_prob(points))
        logits = torch.stack(posterior, -1)[None]
    assert_close(coupling, logits.softmax(-1))


def check_cost_is_an_entropy(routing) -> None:
    """Half the width in every entry lowers the cost of a parent by mass * D * log 2."""
    votes, activations = 10 * randn(1, 8, 1, 3), rand(1, 8) / 8
    wide, narrow = (torch.logit(routing(scale * votes, activations)[2]) for scale in (1.0, 0.5))
    assert_close(narrow - wide, activations.sum(1, keepdim=True) * 3 * math.log(2), rtol=1e-6, atol=1e-6)


EM_CHECKS = (check_activations_weigh, check_responsibilities, check_cost_is_an_entropy)


@pytest.mark.parametrize("check", EM_CHECKS)
def test_em_passes(check):
    check(em_as_by_hand)
    check(em_by_hand)


def test_em_by_hand_is_right():
    votes, activations, logits = randn(2, 8, 3, 4), rand(2, 8), randn(2, 8, 3)
    for ours, theirs in zip(em_as_by_hand(votes, activations, logits), em_by_hand(votes, activations, logits)):
        assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("check", "mistake"),
    [
        (check_activations_weigh, {"renormalise": True}),
        (check_responsibilities, {"drop_activation": True}),
        (check_responsibilities, {"root_in_density": True}),
        (check_cost_is_an_entropy, {"root_in_cost": True}),
    ],
)
def test_em_mistakes_are_caught(check, mistake):
    caught(check, partial(em_by_hand, **mistake))


# 4: windows and positions


class SwappedWindows(Windows):
    """Kernel axes taken for positions: with 3 x 3 of each no shape tells, and with stride 1 not even the values."""

    def gather(self, flat: Tensor) -> Tensor:
        right = super().gather(flat)  # (B, OH, OW, kh * kw * C, ...)
        apart = right.unflatten(3, (*self.kernel, self.num_types))
        return apart.movedim((3, 4), (1, 2)).flatten(3, 5)


class TransposedWindows(Windows):
    """Rows and columns of the kernel are swapped."""

    def gather(self, flat: Tensor) -> Tensor:
        apart = super().gather(flat).unflatten(3, (*self.kernel, self.num_types))
        return apart.transpose(3, 4).flatten(3, 5)


def check_votes_are_a_convolution() -> None:
    """The sum of the votes in a window is a convolution of the poses."""
    poses, weight = randn(2, 7, 7, 2, 3), randn(3, 3, 2, 4, 3, 6)
    votes = ConvVotes(poses, weight, stride=2).materialise()
    channels = poses.permute(0, 3, 4, 1, 2).flatten(1, 2)  # (B, C * K, H, W)
    kernels = weight.permute(3, 5, 2, 4, 0, 1).flatten(0, 1).flatten(1, 2)  # (J * D, C * K, kh, kw)
    expected = conv2d(channels, kernels, stride=2).unflatten(1, (4, 6)).permute(0, 3, 4, 1, 2)
    assert_close(votes.sum(3), expected)


@pytest.mark.parametrize("wrong", [SwappedWindows, TransposedWindows])
def test_swapped_axes_of_patches_are_caught(wrong, monkeypatch):
    check_votes_are_a_convolution()
    monkeypatch.setattr("torchcaps.votes.layers.Windows", wrong)
    caught(check_votes_are_a_convolution)


# 6: overlapping windows


def overlapping() -> ConvVotes:
    return ConvVotes(Capsules(randn(2, 5, 5, 2, 3), rand(2, 5, 5, 2)), randn(3, 3, 2, 4, 3, 3), stride=1)


def conv_em(votes: ConvVotes, num_iterations: int) -> Tensor:
    return em(votes, num_iterations=num_iterations).coupling


def windows_apart(votes: ConvVotes, num_iterations: int) -> Tensor:
    """Wrong: every window is an EM of its own, so a child is shared out once for each window."""
    formed = votes.materialise().flatten(0, 2)
    activations = votes.slots(votes.activations).flatten(0, 2)
    return em(formed, activations, num_iterations=num_iterations).coupling.unflatten(0, (2, 3, 3))


def interior_everywhere(votes: ConvVotes, num_iterations: int) -> Tensor:
    """Wrong: each child starts as if all k * k windows saw it, at the border too."""
    return torch.full(votes.coupling_shape, 1 / (9 * 4), dtype=torch.float64)


def check_windows_compete(routing, num_iterations: int) -> None:
    votes = overlapping()
    shared_out = competitors(routing(votes, num_iterations), votes, "global", 0.0).sum(-1)
    assert_close(shared_out, torch.ones(2, 50, dtype=torch.float64))


def check_first_couplings_are_fair(routing) -> None:
    votes = overlapping()
    rows = competitors(routing(votes, 1), votes, "global", 0.0)
    row = column = torch.tensor([1, 2, 3, 2, 1])
    times = (row[:, None] * column).repeat_interleave(2).double()  # windows that see each child
    reached = competitors(torch.ones(votes.coupling_shape), votes, "global", 0.0) > 0
    expected = torch.where(reached, 1 / (4 * times)[:, None], 0.0)
    assert_close(rows, expected)


def test_windows_that_do_not_compete_are_caught():
    for num_iterations in (1, 3):
        check_windows_compete(conv_em, num_iterations)
        caught(check_windows_compete, windows_apart, num_iterations)


def test_wrong_start_at_the_border_is_caught():
    check_first_couplings_are_fair(conv_em)
    caught(check_first_couplings_are_fair, interior_everywhere)
    caught(check_first_couplings_are_fair, windows_apart)


# 8: padding of texts


LENGTHS = (4, 7, 9)
TEXT_ROUTINGS = {
    "dynamic": partial(dynamic_routing, competition="global"),
    "dynamic window": dynamic_routing,
    "kmeans": partial(kmeans_routing, competition="global"),
    "kmeans euclidean": partial(kmeans_routing, competition="global", metric="euclidean"),
    "entropy": partial(entropy_routing, competition="global"),
    "em": em,
    "em mixing": partial(em, activation="mixing"),
}


def check_padding_takes_no_part(routing, *, use_mask: bool = True, use_window_mask: bool = True) -> None:
    """Texts of several lengths in one batch, padded with noise, are routed as each is alone."""
    tokens, activations, weight = randn(3, 9, 2, 3), rand(3, 9, 2), randn(3, 2, 4, 3, 5)
    bias = randn(3, 2, 4, 5)
    lengths = torch.tensor(LENGTHS)[:, None]
    masks = {}
    if use_mask:
        masks["mask"] = torch.arange(9) < lengths
    if use_window_mask:
        masks["window_mask"] = torch.arange(7) + 3 <= lengths
    padded = routing(ConvVotes(Capsules(tokens, activations), weight, bias=bias, **masks))
    for number, length in enumerate(LENGTHS):
        text = Capsules(tokens[number : number + 1, :length], activations[number : number + 1, :length])
        alone = routing(ConvVotes(text, weight, bias=bias))
        positions = length - 2
        assert_close(padded.capsules.poses[number, :positions], alone.capsules.poses[0])
        assert_close(padded.capsules.activations[number, :positions], alone.capsules.activations[0])
        assert_close(padded.coupling[number, :positions], alone.coupling[0])
        assert not padded.capsules.poses[number, positions:].any(), "a position in the padding holds nothing"
        assert not padded.capsules.activations[number, positions:].any()
        assert not padded.coupling[number, positions:].any()


@pytest.mark.parametrize("name", list(TEXT_ROUTINGS))
def test_padding_that_takes_part_is_caught(name):
    check_padding_takes_no_part(TEXT_ROUTINGS[name])
    caught(partial(check_padding_takes_no_part, use_mask=False, use_window_mask=False), TEXT_ROUTINGS[name])
    # tokens masked, but windows that reach into the padding compete for the last words
    caught(partial(check_padding_takes_no_part, use_window_mask=False), TEXT_ROUTINGS[name])
