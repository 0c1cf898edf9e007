"""The pictures of routing show what the trace holds."""

import matplotlib.colors
import numpy as np
import pytest
import torch

from torchcaps.models import create_model
from torchcaps.nn import create_routing
from torchcaps.routing import dynamic_routing, kmeans_routing
from torchcaps.viz import coupling_strip, route_classes, vote_animation, vote_distances, vote_origins, vote_strip
from torchcaps.viz.couplings import child_order
from torchcaps.viz.origins import grid_window, shares
from torchcaps.viz.plane import main_directions
from torchcaps.viz.routed import COLOURS, ClassRouting, traced
from torchcaps.viz.votes import AREA, NUM_BINS, Scene, draw_activations


@pytest.fixture(scope="module")
def routed() -> ClassRouting:
    """A grid of 3 x 3 places and 2 types that votes for four classes."""
    generator = np.random.default_rng(0)
    votes = generator.normal(size=(1, 18, 4, 5)).astype(np.float32)
    votes[:, :, 2] = 0.2 * votes[:, :, 2] + 1.0  # the one on which the votes agree
    steps = traced(dynamic_routing(torch.from_numpy(votes), num_iterations=3, return_trace=True))
    image = generator.random((1, 9, 9)).astype(np.float32)
    return ClassRouting(image, votes[0], np.ones(18), *steps, ("a", "b", "c", "d"), "dynamic", (3, 3, 2))


@pytest.mark.parametrize(
    ("name", "shape"), [("capsnet-small", (1, 28, 28)), ("matrix-capsnet-small", (2, 32, 32))], ids=str
)
def test_a_routed_image_is_what_the_model_computes(name, shape):
    model = create_model(name, image_shape=shape, num_classes=3).eval()
    image = torch.rand(shape)
    routed = route_classes(model, image)
    expected = model(image[None])
    assert np.allclose(routed.activations[-1], expected.scores[0].detach().numpy(), atol=1e-5)
    assert routed.votes.shape[:2] == routed.couplings.shape[1:] == (np.prod(routed.grid), 3)
    assert np.array_equal(routed.image, image.numpy())


def test_centres_of_em_routing_are_its_poses():
    model = create_model("matrix-capsnet-small", image_shape=(1, 32, 32), num_classes=3)
    routed = route_classes(model, torch.rand(1, 32, 32))
    assert np.allclose(routed.centres(), routed.poses, atol=1e-4)
    assert routed.routing == "em"


def test_another_routing_on_the_same_votes():
    model = create_model("capsnet-small", image_shape=(1, 28, 28), num_classes=3)
    image = torch.rand(1, 28, 28)
    own, other = route_classes(model, image), route_classes(model, image, create_routing("kmeans", num_iterations=4))
    assert np.array_equal(own.votes, other.votes)
    assert (own.routing, len(own.couplings)) == ("dynamic", 3)
    assert (other.routing, len(other.couplings)) == ("kmeans", 5)
    result = kmeans_routing(torch.from_numpy(own.votes)[None], num_iterations=4)
    assert np.allclose(other.activations[-1], result.capsules.activations[0], atol=1e-5)


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
    window = grid_window(model)
    last = [size - 1 for size in children.activations.shape[1:3]]
    (gradient,) = torch.autograd.grad(children.poses[0, last[0], last[1]].square().sum(), image)
    seen = gradient[0, 0].nonzero()
    for axis in range(2):
        first = window.corner[axis] + last[axis] * window.step[axis]
        assert seen[:, axis].min() == max(first, 0)
        assert seen[:, axis].max() == min(first + window.size[axis], shape[1 + axis]) - 1
    with pytest.raises(ValueError, match="no grid of capsules"):
        grid_window(create_model("cnn-small", image_shape=shape, num_classes=2))


def test_models_and_results_that_cannot_be_shown():
    with pytest.raises(ValueError, match="cnn-small has no class capsules"):
        route_classes(create_model("cnn-small", image_shape=(1, 28, 28), num_classes=3), torch.rand(1, 28, 28))
    with pytest.raises(ValueError, match="return_trace=True"):
        traced(kmeans_routing(torch.rand(1, 4, 3, 2)))


def test_centres_are_weighted_means(routed):
    weights = routed.couplings[1, :, 3]
    expected = (weights[:, None] * routed.votes[:, 3]).sum(0) / weights.sum()
    assert np.allclose(routed.centres()[1, 3], expected, atol=1e-6)
    assert routed.strongest[0] == 2


def test_couplings_of_every_iteration(routed):
    figure = coupling_strip(routed)
    order = child_order(routed.couplings[-1])
    assert sorted(order) == list(range(18))
    assert (np.diff(routed.couplings[-1].argmax(1)[order]) >= 0).all()
    pictures = [axes.get_images()[0] for axes in figure.axes if axes.get_images()]
    assert len(pictures) == 3
    for step, picture in enumerate(pictures):
        assert np.array_equal(picture.get_array(), routed.couplings[step][order])
    bars = [[bar.get_height() for bar in axes.patches] for axes in figure.axes[:3]]
    assert np.allclose(bars, routed.activations)
    assert "answer c" in figure.get_suptitle()


def test_votes_have_the_area_of_their_coupling(routed):
    figure = vote_strip(routed, num_classes=2, most=10)
    chosen = np.argsort(-np.linalg.norm(routed.votes[:, routed.strongest[:2]], axis=-1).max(1), kind="stable")[:10]
    couplings = routed.couplings[:, chosen][..., routed.strongest[:2]]
    assert len(figure.axes) == 3
    for step, axes in enumerate(figure.axes):
        assert axes.get_title() == f"iteration {step + 1}"
        for place, points in enumerate(axes.collections):
            assert np.allclose(points.get_sizes(), AREA * couplings[step, :, place] / couplings.max())
            assert matplotlib.colors.to_hex(points.get_facecolor()[0]).upper() == COLOURS[place]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        f"class {routed.labels[index]}" for index in routed.strongest[:2]
    ]


def test_a_scene_moves_from_iteration_to_iteration(routed):
    from matplotlib.figure import Figure

    scene = Scene(routed, 1, 18)
    ends = []
    for time in (0.0, 0.5, 1.0, 2.0):
        axes = Figure().subplots()
        scene.draw(axes, time)
        ends.append(axes.lines[1].get_xydata()[0])
    assert np.allclose(ends[0], scene.centres_SJ2[0, 0])
    assert np.allclose(ends[1], (scene.centres_SJ2[0, 0] + scene.centres_SJ2[1, 0]) / 2)
    assert np.allclose(ends[2:], scene.centres_SJ2[1:, 0])


def test_activations_move_with_the_votes(routed):
    from matplotlib.figure import Figure

    for time, expected in ((0.0, routed.activations[0]), (1.5, routed.activations[1:].mean(0))):
        axes = Figure().subplots()
        draw_activations(axes, routed, [2, 0], time)
        assert [bar.get_width() for bar in axes.patches] == pytest.approx(expected.tolist())
        colours = [matplotlib.colors.to_hex(bar.get_facecolor()).upper() for bar in axes.patches]
        assert colours == [COLOURS[1], "#B2B2B2", COLOURS[0], "#B2B2B2"]


def test_an_animation_is_a_moving_gif(routed, tmp_path, monkeypatch):
    from matplotlib.animation import PillowWriter
    from PIL import Image

    monkeypatch.setattr("torchcaps.viz.votes.FRAMES_PER_STEP", 2)
    monkeypatch.setattr("torchcaps.viz.votes.HELD_FRAMES", 1)
    vote_animation(routed).save(tmp_path / "votes.gif", writer=PillowWriter(fps=10), dpi=30)
    with Image.open(tmp_path / "votes.gif") as picture:
        assert picture.format == "GIF"
        assert getattr(picture, "n_frames", 1) == 5  # three iterations, two between; equal neighbours are stored once
        first = np.asarray(picture.convert("L"), dtype=int)
        picture.seek(getattr(picture, "n_frames", 1) - 1)
        assert (first != np.asarray(picture.convert("L"), dtype=int)).any()


def test_distances_add_up_to_all_couplings(routed):
    figure = vote_distances(routed)
    distances = np.linalg.norm(routed.votes[:, 2] - routed.centres()[-1, 2], axis=-1)
    weights = routed.couplings[-1, :, 2]
    bars = figure.axes[-1].patches[:NUM_BINS]
    edges = [bar.get_x() for bar in bars] + [bars[-1].get_x() + bars[-1].get_width()]
    expected = np.histogram(distances, edges, weights=100 * weights / weights.sum())[0]
    assert np.allclose([bar.get_height() for bar in bars], expected, atol=1e-3)
    assert "pose units" in figure.axes[0].get_xlabel()


def test_shares_of_places_add_up_to_the_class(routed):
    found = shares(routed, 1)
    assert found.shape == (3, 3)
    assert found.sum() == pytest.approx(100, abs=1e-2)
    total = (routed.couplings[-1, :, 1, None] * routed.votes[:, 1]).sum(0)
    last = (routed.couplings[-1, 16:, 1, None] * routed.votes[16:, 1]).sum(0)  # both types of the last place
    assert found[2, 2] == pytest.approx(100 * float(last @ total / (total @ total)), rel=1e-3)
    maps = [axes.get_images()[0].get_array() for axes in vote_origins(routed).axes[1:3]]
    assert np.allclose(maps[0], shares(routed, 2))


def test_main_directions_are_those_of_most_variance():
    generator = np.random.default_rng(0)
    points = generator.normal(size=(2000, 3)) * [1.0, 5.0, 0.1] + 7.0
    mean, directions, variance = main_directions(points)
    assert np.allclose(mean, points.mean(0))
    assert np.allclose(np.abs(directions), [[0, 1, 0], [1, 0, 0]], atol=0.05)
    assert variance == pytest.approx([25 / 26.01, 1 / 26.01], abs=0.02)
    assert main_directions(points[:, :1])[1].tolist()[1] == [0.0]
