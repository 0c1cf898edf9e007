"""Kernels under autocast, and in networks that several processes train together."""

from functools import partial

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from support.cases import class_case, dense_case
from support.gpu_checks import conv1d
from torchcaps.routing import dynamic_routing, em_routing, vb_routing
from torchcaps.votes import DenseVotes

CALLS = {
    "dynamic, dense": (dynamic_routing, lambda: dense_case(num_children=2)),
    "em, conv1d": (partial(em_routing, beta_a=0.1, beta_u=0.2), lambda: conv1d(batch_size=1)),
    "vb, class": (partial(vb_routing, beta_a=0.1, beta_u=0.2), lambda: class_case(batch_size=1, spatial=(1, 2))),
}


def solve(routing, case, types, autocast):
    """Result and gradients; children in types[0], parameters in types[1]."""
    children = {name: types[0] if name in ("poses", "activations") else types[1] for name in case.leaves}
    leaves = {name: case.leaves[name].bfloat16().to(dtype).requires_grad_() for name, dtype in children.items()}
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        result = routing(case.votes(**leaves), num_iterations=2, backend="triton")
        values = [*result.capsules, result.coupling]
    loss = sum(part.sum() for part in result.capsules)
    return values, torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)


@pytest.mark.parametrize("name", CALLS)
def test_autocast_changes_no_digit(name):
    """Features of 16 bits are routed as float32, and their gradients have 16 bits again."""
    routing, make = CALLS[name]
    case = make()
    ours, gradients = solve(routing, case, (torch.bfloat16, torch.float32), autocast=True)
    theirs, expected = solve(routing, case, (torch.float32, torch.float32), autocast=False)
    assert {value.dtype for value in ours} == {torch.float32}
    assert all(map(torch.equal, ours, theirs))
    types = [torch.bfloat16 if leaf in ("poses", "activations") else torch.float32 for leaf in case.leaves]
    assert [gradient.dtype for gradient in gradients] == types
    for gradient, wanted in zip(gradients, expected):
        torch.testing.assert_close(gradient, wanted.to(gradient.dtype))


class Layer(nn.Module):
    """Two children, two parents."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 24, dtype=torch.float64).view(2, 2, 2, 3))

    def forward(self, poses):
        return dynamic_routing(DenseVotes(poses, self.weight), num_iterations=2, backend="triton").capsules.poses


def loss_of(layer, poses):
    return layer(poses).square().sum((1, 2)).mean()


def poses_of_all() -> torch.Tensor:
    return torch.sin(torch.arange(16, dtype=torch.float64)).view(4, 2, 2)


def work(rank: int, folder: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    layer = DistributedDataParallel(Layer())
    loss_of(layer, poses_of_all()[2 * rank : 2 * rank + 2]).backward()
    torch.save(layer.module.weight.grad, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def test_two_processes_have_the_gradient_of_both_batches(tmp_path):
    multiprocessing.spawn(work, (str(tmp_path),), nprocs=2)
    layer = Layer()
    loss_of(layer, poses_of_all()).backward()
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), layer.weight.grad)
