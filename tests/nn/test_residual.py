"""Residual blocks and pooling of capsules, and stacks of many layers."""

import pytest
import torch
from torch.testing import assert_close

from torchcaps import nn
from torchcaps.capsules import Capsules
from torchcaps.data import load_data

SOFT_EM = {"num_iterations": 3, "activation": "entropy", "lambda_schedule": 0.001, "eps_var": 1e-4,
           "inverse_temperature": 1 / 16}  # fmt: skip
DEPTH = 10


def em_layer(*, start="small", norm=True, types=4):
    return nn.ConvCaps2d(
        types, types, 16, 16, 3, padding="same", pose="matrix", start=start,
        routing=nn.EMRouting(**SOFT_EM), norm=nn.CapsuleNorm(types) if norm else None,
    )  # fmt: skip


def vector_layer(types=4, *, norm=False):
    norm = nn.CapsuleNorm(types) if norm else None
    return nn.ConvCaps2d(types, types, 8, 8, 3, padding="same", routing=nn.DynamicRouting(), norm=norm)


def test_poses_are_added_and_activations_averaged():
    layer = em_layer()
    block, children = nn.ResidualCaps(layer), Capsules(torch.randn(2, 5, 5, 4, 16), torch.rand(2, 5, 5, 4))
    inner, found = layer(children), block(children)
    assert_close(found.poses, children.poses + inner.poses)
    assert_close(found.activations, (children.activations + inner.activations) / 2)
    results = block.route(children)[1]
    assert list(results) == ["layers.0"]
    assert results["layers.0"].children is children


def test_vector_capsules_keep_lengths_below_one():
    block = nn.ResidualCaps(vector_layer(), vector_layer())
    children = Capsules.from_poses(nn.squash(3 * torch.randn(2, 5, 5, 4, 8)))
    found = block(children)
    assert_close(found.activations, found.poses.norm(dim=-1))
    assert float(found.activations.detach().max()) < 1


def test_a_shortcut_where_positions_change():
    layer = nn.ConvCaps2d(4, 4, 8, 8, 3, 2, padding=1, routing=nn.DynamicRouting())
    children = Capsules.from_poses(nn.squash(torch.randn(2, 6, 6, 4, 8)))
    assert nn.ResidualCaps(layer, shortcut=nn.CapsulePool2d(2))(children).poses.shape == (2, 3, 3, 4, 8)
    with pytest.raises(ValueError, match="give a shortcut"):
        nn.ResidualCaps(layer)(children)
    with pytest.raises(TypeError, match="takes capsule layers"):
        nn.ResidualCaps(torch.nn.Linear(2, 2))


def test_pooling_takes_the_most_active_or_the_mean_by_activation():
    children = Capsules(torch.randn(2, 4, 6, 3, 5), torch.rand(2, 4, 6, 3))
    most, mean = nn.CapsulePool2d((2, 3))(children), nn.CapsulePool2d((2, 3), kind="mean")(children)
    assert most.poses.shape == mean.poses.shape == (2, 2, 2, 3, 5)
    poses, activations = children.poses[1, 2:, 3:, 1].flatten(0, 1), children.activations[1, 2:, 3:, 1].flatten()
    assert_close(most.poses[1, 1, 1, 1], poses[activations.argmax()])
    assert_close(most.activations[1, 1, 1, 1], activations.max())
    assert_close(mean.poses[1, 1, 1, 1], (activations[:, None] * poses).sum(0) / activations.sum())
    assert_close(mean.activations[1, 1, 1, 1], activations.mean())


def test_pooling_of_capsules_that_are_all_absent_is_a_plain_mean_with_finite_gradients():
    poses, activations = torch.randn(1, 2, 2, 1, 3), torch.zeros(1, 2, 2, 1, requires_grad=True)
    pooled = nn.CapsulePool2d(None, kind="mean")(Capsules(poses, activations))
    assert_close(pooled.poses.flatten(), poses.mean((1, 2)).flatten())
    (pooled.poses.sum() + pooled.activations.sum()).backward()
    assert bool(activations.grad.isfinite().all())


@pytest.mark.parametrize("kind", ["em", "vector"])
def test_activations_and_gradients_stay_in_range_through_ten_layers(kind):
    torch.manual_seed(0)
    if kind == "em":
        blocks = [nn.ResidualCaps(em_layer()) for _ in range(DEPTH)]
        capsules = Capsules(torch.randn(2, 5, 5, 4, 16), torch.rand(2, 5, 5, 4))
    else:
        blocks = [nn.ResidualCaps(vector_layer(norm=True)) for _ in range(DEPTH)]
        capsules = Capsules.from_poses(nn.squash(torch.randn(2, 5, 5, 4, 8)))
    maps = []
    for block in blocks:
        capsules = block(capsules)
        capsules.poses.retain_grad()
        maps.append(capsules)
    (capsules.poses * torch.randn_like(capsules.poses)).sum().backward()
    gradients = [float(each.poses.grad.norm()) for each in maps]
    activations = [float(each.activations.detach().mean()) for each in maps]
    assert all(0.05 < activation < 0.95 for activation in activations)
    assert max(gradients) < {"em": 5, "vector": 100}[kind] * min(gradients)  # a factor of 1.6 in each layer of vectors
    norms = [float(block.layers[0].weight.grad.norm()) for block in blocks]
    assert max(norms) < 100 * min(norms)
    assert min(norms) > 0


class Deep(torch.nn.Module):
    """Ten capsule layers on pictures of digits: the primary ones, eight blocks, and the classes."""

    def __init__(self, start):
        super().__init__()
        self.stem = torch.nn.Sequential(
            torch.nn.Conv2d(1, 32, 5, 4, 2), torch.nn.BatchNorm2d(32), torch.nn.ReLU()
        )  # 28 -> 7
        self.primary = nn.PrimaryMatrixCaps(32, 4, norm=nn.CapsuleNorm(4, pose_affine=True, logit_affine=True))
        self.blocks = torch.nn.Sequential(*(nn.ResidualCaps(em_layer(start=start)) for _ in range(DEPTH - 2)))
        self.classes = nn.ClassCaps(
            4, 10, 16, 16, pose="matrix", coordinates=0.1, start="small", routing=nn.EMRouting(**SOFT_EM),
            norm=nn.CapsuleNorm(10, logit_affine=True),
        )  # fmt: skip

    def forward(self, images):
        return self.classes(self.blocks(self.primary(self.stem(images)))).activations


@pytest.mark.slow
def test_ten_capsule_layers_learn_digits():
    torch.manual_seed(0)
    data, network = load_data("digits"), Deep("small")
    images = torch.from_numpy(data.train.images).float().unsqueeze(1) / 255
    labels = torch.from_numpy(data.train.labels)
    epochs, batch = 4, 50
    optimiser = torch.optim.AdamW(network.parameters(), lr=5e-3)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimiser, 5e-3, total_steps=epochs * len(images) // batch)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(batch):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(network(images[chosen]), labels[chosen]).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimiser.step()
            plan.step()
    network.eval()
    with torch.no_grad():
        tested = network(torch.from_numpy(data.test.images).float().unsqueeze(1) / 255).argmax(1)
    assert float((tested == torch.from_numpy(data.test.labels)).float().mean()) > 0.9
