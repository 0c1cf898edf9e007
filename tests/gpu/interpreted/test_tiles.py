"""Any sizes: many programs, blocks of parents and chunks of slots give what one program gives."""

import pytest
import torch

from support.cases import dense_case
from support.gpu_checks import assert_right, conv1d, solve
from support.situations import amended, with_logits
from torchcaps.gpu import tiles as tile_sizes
from torchcaps.gpu.tiles import choose_tile, cut
from torchcaps.routing import dynamic_routing, em_routing, kmeans_routing

SOFT = {"num_iterations": 2, "inverse_temperature": 0.25, "eps_var": 0.05, "beta_a": 0.3, "beta_u": -0.2}


@pytest.fixture
def tiles(monkeypatch):
    """Two samples of two parents of four entries in a tile, and slots in chunks."""
    monkeypatch.setattr(tile_sizes, "ENTRIES", 16)
    monkeypatch.setattr(tile_sizes, "WEIGHT_ENTRIES", 16)
    monkeypatch.setattr(tile_sizes, "PROGRAMS_WANTED", 8)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("kind", ["window", "global", "position"])
def test_softmax(kind):
    case = amended(conv1d(mask=True, num_parents=3, batch_size=2)).given(competition=kind)
    assert_right(dynamic_routing, case, num_iterations=2, leaky=True)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("kind", ["window", "global", "position"])
def test_em(kind):
    assert_right(em_routing, conv1d(num_parents=3, batch_size=2).given(competition=kind), **SOFT)


@pytest.mark.usefixtures("tiles")
def test_the_same_bits_again():
    case = with_logits(dense_case(num_children=3, num_parents=3, sharing="shared"))
    first, second = (
        solve(kmeans_routing, case, torch.float32, backend="triton", metric="euclidean", num_iterations=1)
        for _ in range(2)
    )
    assert torch.equal(first[0].capsules.poses, second[0].capsules.poses)
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])


def test_long_rows_are_not_unrolled():
    """More than 16 entries in a row of a pose."""
    poses, weight = torch.randn(2, 2, 17).double(), 0.2 * torch.randn(2, 2, 17, 3).double()
    case = dense_case(num_children=2, num_parents=2, bias=False)
    case.leaves.update(poses=poses, weight=weight)
    assert_right(dynamic_routing, case, num_iterations=2)


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (128, 10, 1, 16), (7, 63, 4, 4), (9, 1000, 3, 5), (3, 2, 1, 9000)])
def test_tiles_follow_votes(sizes, monkeypatch):
    monkeypatch.undo()
    tile = choose_tile(*sizes)
    assert tile.entries <= max(tile_sizes.ENTRIES, tile.rows * tile.row)
    assert all(size & (size - 1) == 0 for size in tile)
    chunk, num_chunks = cut(sizes[1], sizes[0])
    assert (num_chunks - 1) * chunk < sizes[1] <= num_chunks * chunk
