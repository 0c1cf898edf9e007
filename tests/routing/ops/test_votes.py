"""Lowering: what kernels read says the same votes as the description, on the device of the votes."""

import pytest
import torch

from support.cases import randn
from torchcaps.capsules import Capsules
from torchcaps.routing.ops.votes import KernelVotes, lower
from torchcaps.votes import ClassVotes, ConvVotes, DenseVotes

SHARING = ("full", "shared", "factorised")


def weight_of(sharing: str, *places: int):
    full, shared = (randn(*places, 3, 4, 5), randn(3, 4, 5))
    return {"full": full, "shared": shared, "factorised": (randn(*places, 4, 2), randn(3, 2, 5))}[sharing]


def describe(kind: str, sharing: str, device: str = "cpu"):
    """Votes of two examples, some of whose children and windows are left out."""
    torch.manual_seed(0)

    def put(value):
        return tuple(part.to(device) for part in value) if isinstance(value, tuple) else value.to(device)

    if kind == "conv":
        children = Capsules(put(randn(2, 5, 4, 2, 4)), put(torch.rand(2, 5, 4, 2).double()))
        options = {"mask": put(torch.rand(2, 5, 4, 2) < 0.7), "window_mask": put(torch.rand(2, 3, 3) < 0.7)}
        size = {"kernel_size": (3, 2)} if sharing == "shared" else {}
        return ConvVotes(children, put(weight_of(sharing, 3, 2, 2)), sharing=sharing, **options, **size)
    if kind == "class":
        children = Capsules(put(randn(2, 2, 3, 2, 4)), put(torch.rand(2, 2, 3, 2).double()))
        return ClassVotes(children, put(weight_of(sharing, 2)), sharing=sharing)
    children = Capsules(put(randn(2, 6, 4)), put(torch.rand(2, 6).double()))
    return DenseVotes(children, put(weight_of(sharing, 6)), sharing=sharing, mask=put(torch.rand(2, 6) < 0.7))


def form(votes: KernelVotes) -> torch.Tensor:
    """The votes one by one, as csrc/votes.h says: (B, S, N, J, D)."""
    formed = votes.poses.new_zeros(*votes.coupling_shape, votes.vote_size)
    for b, s, n in torch.cartesian_prod(*(torch.arange(size) for size in votes.coupling_shape[:3])).tolist():
        child = n if votes.child is None else votes.child[s, n]
        transform = n if votes.transform is None else votes.transform[n]
        if votes.child_mask is not None and not votes.child_mask[b, child]:
            continue
        rows = votes.poses[b, child].unflatten(0, (votes.rows, -1))
        vote_JD = torch.einsum("rk,jke->jre", rows, votes.weight[transform]).flatten(1)
        if votes.bias is not None:
            vote_JD = vote_JD + votes.bias[transform]
        formed[b, s, n] = vote_JD if votes.offset is None else vote_JD + votes.offset[n]
    return formed


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("kind", ["dense", "conv", "class"])
@pytest.mark.parametrize("windows_compete", [False, True])
def test_lowered_votes_are_those_of_the_description(kind, sharing, windows_compete):
    description = describe(kind, sharing)
    votes = lower(description, windows_compete=windows_compete)
    expected = description.materialise().reshape(*votes.coupling_shape, votes.vote_size)
    slots = description.slot_mask()
    if slots is not None:  # what is left out is never read
        exists = slots.reshape(votes.coupling_shape[:3])
        assert torch.equal(expected[exists].ne(0).any(), torch.tensor(True))
        torch.testing.assert_close(form(votes)[exists], expected[exists])
    else:
        torch.testing.assert_close(form(votes), expected)
    if kind == "conv" and windows_compete:  # a child that several windows see is one to the kernels
        assert votes.poses.shape[1] == description.num_children


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("kind", ["dense", "conv", "class"])
def test_lowering_stays_on_the_device_of_the_votes(kind, sharing):
    here, there = lower(describe(kind, sharing)), lower(describe(kind, sharing, "meta"))
    for name, value in here._asdict().items():
        other = getattr(there, name)
        if isinstance(value, torch.Tensor):
            assert (other.device.type, other.shape, other.dtype) == ("meta", value.shape, value.dtype), name
        else:
            assert other == value, name
