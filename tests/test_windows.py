"""The geometry of sliding windows against plain loops."""

import pytest
import torch

from torchcaps.windows import Windows, per_axis

GEOMETRIES = {
    "1-D": ((8,), 2, (3,), (2,)),
    "1-D, one position": ((3,), 1, (3,), (1,)),
    "1-D, gaps": ((9,), 2, (2,), (4,)),
    "2-D": ((6, 5), 3, (3, 2), (2, 1)),
    "2-D, 1 x 1": ((2, 3), 2, (1, 1), (1, 1)),
    "2-D, 14 to 6": ((14, 14), 2, (3, 3), (2, 2)),
}


@pytest.fixture(params=GEOMETRIES.values(), ids=GEOMETRIES)
def windows(request):
    return Windows(*request.param)


def starts(windows: Windows) -> list[tuple[int, ...]]:
    """Where the windows begin, row by row."""
    axes = [range(0, n - k + 1, s) for n, k, s in zip(windows.spatial, windows.kernel, windows.stride)]
    return [(row,) for row in axes[0]] if len(axes) == 1 else [(row, column) for row in axes[0] for column in axes[1]]


def slots(windows: Windows, start: tuple[int, ...]) -> list[int]:
    """The children of one window in the order of its slots."""
    children = []
    if len(start) == 1:
        for row in range(windows.kernel[0]):
            children += [(start[0] + row) * windows.num_types + c for c in range(windows.num_types)]
        return children
    for row in range(windows.kernel[0]):
        for column in range(windows.kernel[1]):
            place = (start[0] + row) * windows.spatial[1] + start[1] + column
            children += [place * windows.num_types + c for c in range(windows.num_types)]
    return children


def test_children_and_counts(windows):
    expected = [slots(windows, start) for start in starts(windows)]
    assert windows.children().tolist() == expected
    assert windows.output == tuple(
        len(range(0, n - k + 1, s)) for n, k, s in zip(windows.spatial, windows.kernel, windows.stride)
    )
    assert windows.num_slots == len(expected[0])
    assert windows.num_children == torch.Size((*windows.spatial, windows.num_types)).numel()


def test_gather_copies_each_child_with_all_that_belongs_to_it(windows):
    flat = torch.randn(2, windows.num_children, 3, 4)
    gathered = windows.gather(flat)
    assert gathered.shape == (2, *windows.output, windows.num_slots, 3, 4)
    gathered = gathered.reshape(2, -1, windows.num_slots, 3, 4)
    for position, start in enumerate(starts(windows)):
        for slot, child in enumerate(slots(windows, start)):
            assert torch.equal(gathered[:, position, slot], flat[:, child])


def test_gradient_of_a_child_is_the_number_of_windows_that_see_it(windows):
    flat = torch.zeros(1, windows.num_children, requires_grad=True)
    windows.gather(flat).sum().backward()
    seen = [0] * windows.num_children
    for start in starts(windows):
        for child in slots(windows, start):
            seen[child] += 1
    assert flat.grad[0].tolist() == seen


def test_stride_two_sees_rows_unequally_and_the_last_not_at_all():
    windows = Windows((14, 14), 1, (3, 3), (2, 2))
    assert windows.output == (6, 6)
    times = torch.bincount(windows.children().flatten(), minlength=196).view(14, 14)
    rows = torch.tensor([1, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 1, 0])
    assert torch.equal(times, rows[:, None] * rows)


def test_per_axis():
    assert per_axis("stride", 2, 2) == (2, 2)
    assert per_axis("stride", (2, 1), 2) == (2, 1)
    for wrong in (0, (1, 2, 3), (1, 0), 1.5, "x"):
        with pytest.raises((ValueError, TypeError), match="stride must be a positive integer or 2 of them, got"):
            per_axis("stride", wrong, 2)


def test_messages():
    with pytest.raises(ValueError, match=r"a window of \(3,\) does not fit into a map of \(2,\); use a smaller kernel"):
        Windows((2,), 1, (3,), (1,))
    with pytest.raises(ValueError, match=r"kernel \(3,\) and stride \(1, 1\) need one entry for each of the 2 spatial"):
        Windows((5, 5), 1, (3,), (1, 1))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own making
def test_the_compiled_gradient_is_that_of_eager_torch():
    """That of torch.unfold corrupts memory (torch 2.13): the process ends, or another tensor changes."""
    windows = Windows((6, 6), 4, (3, 3), (1, 1))

    def total(flat, weight):
        return (windows.gather(flat) * weight).sum()

    flat = torch.randn(1, windows.num_children, 3, requires_grad=True)
    weight = torch.randn(1, *windows.output, windows.num_slots, 3)
    [expected] = torch.autograd.grad(total(flat, weight), flat)
    [found] = torch.autograd.grad(torch.compile(total)(flat, weight), flat)
    torch.testing.assert_close(found, expected)
