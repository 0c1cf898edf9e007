"""The situations every routing must master, and how its result is held against the loops."""

import torch
from torch import Tensor

from support import loops
from support.cases import Case, class_case, conv_case, dense_case, rand, randn, random_mask, tensor_case
from torchcaps.routing import RoutingResult
from torchcaps.routing.competition import KINDS
from torchcaps.votes import as_votes


def with_logits(case: Case) -> Case:
    return case.given(initial_logits=randn(*as_votes(case.votes()).coupling_shape))


def conv1d_case(**options) -> Case:
    """One dimension; the last child is seen by no window."""
    return conv_case(spatial=(6,), kernel=(3,), stride=(2,), **options)


def every(name: str, make) -> dict:
    """A convolutional situation under every competition."""
    return {f"{name}-{kind}": lambda kind=kind: make().given(competition=kind) for kind in KINDS}


# Each makes its case when it is called, so that collecting tests costs nothing.
SITUATIONS = {
    "plain": tensor_case,
    "one of everything": lambda: tensor_case((1, 1, 1, 1)),
    "one child": lambda: tensor_case((2, 1, 3, 4)),
    "one parent": lambda: tensor_case((2, 7, 1, 3)),
    "one entry": lambda: tensor_case((1, 7, 7, 1)),
    "63 children": lambda: tensor_case((2, 63, 7, 3)),
    "63 parents": lambda: tensor_case((1, 7, 63, 7)),
    "mask": lambda: tensor_case().given(mask=random_mask(2, 7)),
    "logits": lambda: with_logits(tensor_case()),
    "logits, mask": lambda: with_logits(tensor_case()).given(mask=random_mask(2, 7)),
    "dense full": lambda: dense_case(mask=True),
    "dense shared": lambda: dense_case(sharing="shared", mask=True),
    "dense factorised": lambda: dense_case(sharing="factorised", bias=False),
    "dense matrix": lambda: dense_case(pose="matrix"),
    "class": lambda: class_case(mask=True),
    "class matrix": lambda: class_case(pose="matrix"),
    **every("conv", conv_case),
    **every("conv matrix shared", lambda: conv_case(pose="matrix", sharing="shared")),
    **every("conv mask", lambda: conv_case(mask=True)),
    **every("conv mask, window mask", lambda: conv_case(mask=True, window_mask=True)),
    **every("conv logits", lambda: with_logits(conv_case(sharing="factorised", window_mask=True))),
    **every("conv one window", lambda: conv_case(spatial=(3, 2), num_parents=3)),
    "dense position": lambda: dense_case(mask=True).given(competition="position"),
    "class position": lambda: class_case(mask=True).given(competition="position"),
    **every("conv1d", lambda: conv1d_case(window_mask=True)),
}


def with_activations(case: Case) -> Case:
    """Activations for the call, where the votes do not carry them."""
    if "activations" in case.leaves:
        return case
    batch_size, num_children = case.leaves["votes"].shape[:2]
    return case.given(activations=rand(batch_size, num_children))


def amended(case: Case) -> Case:
    return with_activations(case).given(amend=True)


def partially(case: Case) -> Case:
    """Only some of the parent types take part; the first does not."""
    num_parents = as_votes(case.votes()).num_parents
    return case.given(partial=torch.arange(num_parents) % 2 == 1)


# What the routings that weigh children by couplings alone have beside those.
CHANGES = {
    "amend": lambda: amended(tensor_case()),
    "amend, mask": lambda: amended(dense_case(mask=True)),
    "partial": lambda: partially(tensor_case((2, 7, 5, 3))),
    "amend, partial, logits": lambda: with_logits(partially(amended(dense_case(mask=True)))),
    **every("conv amend", lambda: amended(conv_case(mask=True))),
    **every("conv partial", lambda: partially(conv_case(num_parents=3, window_mask=True))),
    **every(
        "conv amend, partial, logits", lambda: with_logits(partially(amended(conv_case(mask=True, num_parents=3))))
    ),
}


def route(routing, case: Case, **options) -> RoutingResult:
    """The result of the library, with a trace."""
    return routing(case.votes(), **({"return_trace": True} | case.options | options))


def assert_like_loops(result: RoutingResult, expected: tuple[loops.Step, list[loops.Step]], case: Case) -> None:
    """Capsules, couplings and every step of the trace agree."""
    final, steps = expected

    def same(ours: Tensor, theirs, name: str) -> None:
        theirs = torch.as_tensor(theirs)
        if name != "objective":
            theirs = theirs.reshape(theirs.shape[0], *case.positions, *theirs.shape[2:])
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10, msg=lambda text: f"{name}: {text}")

    same(result.capsules.poses, final.poses, "poses")
    same(result.capsules.activations, final.activations, "activations")
    same(result.coupling, final.coupling, "coupling")
    assert len(result.trace) == len(steps)
    for number, (ours, theirs) in enumerate(zip(result.trace, steps)):
        for name in loops.Step._fields:
            same(getattr(ours, name), getattr(theirs, name), name if name == "objective" else f"{name} of {number}")


# Small, since finite differences run the routing twice for every number.
GRADIENTS = {
    "plain": lambda: with_logits(tensor_case((1, 4, 3, 2))),
    "mask": lambda: tensor_case((2, 4, 2, 2)).given(mask=random_mask(2, 4)),
    "dense full": lambda: dense_case(num_children=3, num_parents=2, mask=True),
    "dense factorised matrix": lambda: dense_case(sharing="factorised", pose="matrix", num_children=4),
    "conv window": lambda: conv1d_case(batch_size=1, num_types=1, bias=False, mask=True).given(competition="window"),
    "conv global": lambda: with_logits(
        conv1d_case(batch_size=1, sharing="shared", window_mask=True).given(competition="global")
    ),
    "conv position": lambda: conv1d_case(batch_size=1, num_types=1, bias=False, mask=True, window_mask=True).given(
        competition="position"
    ),
    "conv2d position": lambda: with_logits(
        conv_case(batch_size=1, spatial=(4, 3), num_types=1, sharing="shared").given(competition="position")
    ),
    "conv2d global": lambda: conv_case(
        batch_size=1, spatial=(4, 3), num_types=1, pose="matrix", sharing="shared"
    ).given(competition="global"),
    "class": lambda: class_case(batch_size=1, spatial=(2, 2), num_parents=2),
}


def gradcheck(routing, case: Case, **options) -> bool:
    """Gradients of all leaves (and of logits, activations and betas in the call) against finite differences."""
    tensors = {
        name: value
        for name, value in (case.options | options).items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    fixed = {name: value for name, value in (case.options | options).items() if name not in tensors}
    names, num_leaves = [*case.leaves, *tensors], len(case.leaves)

    def solve(*values: Tensor):
        leaves = dict(zip(names[:num_leaves], values))
        result = routing(case.votes(**leaves), **dict(zip(names[num_leaves:], values[num_leaves:])), **fixed)
        return tuple(result.capsules)

    inputs = [value.clone().requires_grad_() for value in (*case.leaves.values(), *tensors.values())]
    return torch.autograd.gradcheck(solve, inputs, atol=1e-6, rtol=1e-4)
