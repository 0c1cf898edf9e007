"""The pictures of routing show what the trace holds."""

import matplotlib.colors
import numpy as np
import pytest

from support.routed import agreeing_votes
from torchcaps.inspection import ClassRouting, origin_shares
from torchcaps.viz import coupling_strip, vote_animation, vote_distances, vote_origins, vote_strip
from torchcaps.viz.couplings import child_order
from torchcaps.viz.palette import COLOURS
from torchcaps.viz.votes import AREA, NUM_BINS, Scene, draw_activations


@pytest.fixture(scope="module")
def routed() -> ClassRouting:
    return agreeing_votes()


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


def test_places_of_the_two_strongest_classes(routed):
    maps = [axes.get_images()[0].get_array() for axes in vote_origins(routed).axes[1:3]]
    assert np.allclose(maps[0], origin_shares(routed, 2))
    assert np.allclose(maps[1], origin_shares(routed, routed.strongest[1]))
    with pytest.raises(ValueError, match="places are told"):
        vote_origins(routed._replace(grid=(9, 2)))
