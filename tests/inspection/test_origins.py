"""Places of an image have their share in a class, and see their window."""

import pytest
import torch

from support.routed import agreeing_votes
from torchcaps.inspection import find_routes, origin_shares, seen_window
from torchcaps.models import create_model


@pytest.mark.parametrize(
    ("name", "shape"),
    [("capsnet-small", (1, 28, 28)), ("matrix-capsnet-small", (1, 32, 35)), ("capsnet", (1, 16, 18))],
    ids=str,
)
def test_a_place_sees_its_window_and_nothing_else(name, shape):
    # not EM: there a child shares itself among all windows, so that a pixel has a small say everywhere
    model = create_model(name, image_shape=shape, num_classes=2, routing="uniform").eval()
    image = torch.rand(1, *shape, requires_grad=True)
    children = model.primary(model.features(model.pad(image)))
    if name.startswith("matrix"):
        children = model.conv2(model.conv1(children))
    window = seen_window(find_routes(model, image[0].detach()))
    last = [size - 1 for size in children.activations.shape[1:3]]
    (gradient,) = torch.autograd.grad(children.poses[0, last[0], last[1]].square().sum(), image)
    seen = gradient[0, 0].nonzero()
    for axis in range(2):
        first = window.corner[axis] + last[axis] * window.step[axis]
        assert seen[:, axis].min() == max(first, 0)
        assert seen[:, axis].max() == min(first + window.size[axis], shape[1 + axis]) - 1
    with pytest.raises(ValueError, match="does not implement first_window"):
        create_model("cnn-small", image_shape=shape, num_classes=2).first_window()


def test_shares_of_places_add_up_to_the_class():
    routed = agreeing_votes()
    found = origin_shares(routed, 1)
    assert found.shape == (3, 3)
    assert found.sum() == pytest.approx(100, abs=1e-2)
    total = (routed.couplings[-1, :, 1, None] * routed.votes[:, 1]).sum(0)
    last = (routed.couplings[-1, 16:, 1, None] * routed.votes[16:, 1]).sum(0)  # both types of the last place
    assert found[2, 2] == pytest.approx(100 * float(last @ total / (total @ total)), rel=1e-3)
