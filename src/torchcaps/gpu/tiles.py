"""How large the tiles of a program are: they follow the number of parents and the size of a vote."""

from typing import NamedTuple

ENTRIES = 1024  # of votes in a tile; eight for each thread of four warps
WEIGHT_ENTRIES = 4096  # products of a vote and a pose that the gradient of weights holds at a time
GROUP = 2  # transformations whose gradients a program finds at a time
PROGRAMS_WANTED = 1024  # a few for each multiprocessor: how finely slots are cut into chunks
DOT_SAMPLES = 16  # in a tile, where votes are products of tiles
LEAST_INNER = 8  # entries of a pose; they are padded to 16
LARGEST_INNER = 32  # of them at a time
LARGEST_UNROLLED = 16  # entries of a pose whose products are written out one after the other
LARGEST_ROW = 256  # entries of a vote
LARGEST_VOTE = 16384  # entries of one vote that a program can hold


class Tile(NamedTuple):
    """Samples, parents, rows and entries of a row in a tile, all powers of two, and the warps that share it."""

    samples: int
    parents: int
    rows: int
    row: int
    warps: int

    @property
    def entries(self) -> int:
        return self.samples * self.parents * self.rows * self.row


def power_of_two(number: int) -> int:
    """The next one that is not smaller.

    Example:
        >>> [power_of_two(number) for number in (1, 5, 8)]
        [1, 8, 8]
    """
    return 1 << (number - 1).bit_length()


def takes_dots(samples: int, rows: int, inner: int, row: int) -> bool:
    """Whether votes are products of tiles, which tensor cores take: vectors, of no few entries, of no few samples."""
    return rows == 1 and samples >= DOT_SAMPLES and inner >= LEAST_INNER and power_of_two(row) <= LARGEST_ROW


def choose_tile(samples: int, parents: int, rows: int, row: int, entries: int | None = None, least: int = 1) -> Tile:
    """A tile of about `entries` numbers: whole votes, then parents, then samples, of which there are `least`.

    Example:
        >>> choose_tile(128, 10, 1, 16)
        Tile(samples=4, parents=16, rows=1, row=16, warps=4)
        >>> choose_tile(128, 1024, 4, 4)
        Tile(samples=1, parents=64, rows=4, row=4, warps=4)
    """
    entries = ENTRIES if entries is None else entries
    rows, row = power_of_two(rows), power_of_two(row)
    parents = min(power_of_two(parents), max(1, entries // (least * rows * row)))
    samples = min(power_of_two(samples), max(least, entries // (parents * rows * row)))
    warps = min(16, max(4, 4 * samples * parents * rows * row // entries))
    return Tile(samples, parents, rows, row, warps)


def cut(length: int, programs: int) -> tuple[int, int]:
    """(length of a chunk, number of chunks) so that there are about PROGRAMS_WANTED programs in all.

    Example:
        >>> cut(1152, 64)
        (72, 16)
    """
    chunk = -(-length // max(1, PROGRAMS_WANTED // programs))
    return chunk, -(-length // chunk)
