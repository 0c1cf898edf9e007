"""One layer of votes on a device: its sizes, its tiles, and the passes over it.

Nothing here reads a number back from the device, so that a call never waits for it and can be captured in a graph.
"""

from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from torchcaps.gpu import tiles
from torchcaps.gpu.arguments import Form, Partition, Shape, Sizes, Sums, Votes
from torchcaps.gpu.kernels import max_min, passes
from torchcaps.gpu.launch import launch
from torchcaps.gpu.state import Kind, working_type
from torchcaps.gpu.tiles import Tile, choose_tile, cut, power_of_two
from torchcaps.routing.ops.bodies import interprets
from torchcaps.routing.ops.tables import may_keep
from torchcaps.routing.ops.votes import KernelVotes

TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}
ROWS = 8  # pairs of a sample and a parent in a program that ends an iteration


class Slots(NamedTuple):
    """The slots of each owner: `list` from start[owner] on."""

    start: Tensor
    list: Tensor

    @staticmethod
    def of(owner: Tensor, num_owners: int) -> "Slots":
        """From the owner of each slot, without reading anything back; once for a table that is kept."""
        if not may_keep(owner.device):
            return Slots._of(owner, num_owners)
        if owner not in kept_slots:
            with torch.inference_mode(False):
                kept_slots[owner] = Slots._of(owner, num_owners)
        return kept_slots[owner]

    @staticmethod
    def _of(owner: Tensor, num_owners: int) -> "Slots":
        flat = owner.flatten()
        order = flat.argsort(stable=True)
        start = torch.searchsorted(flat[order], torch.arange(num_owners + 1, dtype=flat.dtype, device=flat.device))
        return Slots(start.to(torch.int32), order.to(torch.int32))


kept_slots = WeakTensorKeyDictionary()  # of tables of children and of transformations


class Layer:
    """Votes, and who competes for them.

    Args:
        votes: as operators take them.
        partial: (J,) bool, the parents that take part, or None for all.
        worth: (C, J), what parents gain by using a child.
        leaky: a parent with logit 0 joins every softmax.
    """

    def __init__(
        self,
        votes: KernelVotes,
        *,
        partial: Tensor | None = None,
        worth: Tensor | None = None,
        leaky: bool = False,
    ) -> None:
        self.votes = votes = votes.contiguous()
        self.dtype, self.leaky = working_type(votes.poses), leaky
        self.batch_size, self.num_windows, self.num_parents = votes.parent_shape
        self.num_children, self.num_slots = votes.poses.shape[1], votes.num_slots
        self.num_samples = self.batch_size * self.num_windows
        self.num_rows = self.num_samples * self.num_parents
        self.num_transforms, _, self.inner, self.outer = votes.weight.shape
        fields = votes._asdict()
        self.given = Votes(
            **{name: fields[name] for name in Votes._fields if name in fields},
            partial=None if partial is None else partial.contiguous(),
            worth=None if worth is None else worth.contiguous(),
        )
        self.dots = tiles.takes_dots(self.num_samples, votes.rows, self.inner, self.outer)
        self.tile = self._tile()
        self.num_blocks = -(-self.num_parents // self.tile.parents)
        num_tiles = -(-self.num_samples // self.tile.samples)
        chunk, self.num_chunks = cut(self.num_slots, num_tiles * self.num_blocks)
        num_types = 1 if worth is None else worth.shape[0]
        self.sizes = Sizes(self.num_samples, self.num_windows, self.num_slots, self.num_children, chunk, num_types)
        self.grid = (num_tiles, self.num_chunks, self.num_blocks)
        self.options = {"SHAPE": self._shape(self.tile), "num_warps": self.tile.warps, "num_stages": 2}
        self._holders: Slots | None = None

    @property
    def vote_size(self) -> int:
        return self.votes.vote_size

    @property
    def row_grid(self) -> tuple[int]:
        """Of kernels that end an iteration."""
        return (-(-self.num_rows // ROWS),)

    @property
    def row_options(self) -> dict:
        """Of kernels that end an iteration."""
        return {"D": self.vote_size, "RT": ROWS, "DP": power_of_two(self.vote_size), "ACC": TYPES[self.dtype]}

    @property
    def holders(self) -> Slots | None:
        """The slots that hold each child; None where slot n holds child n."""
        if self._holders is None and self.votes.child is not None:
            self._holders = Slots.of(self.votes.child, self.num_children)
        return self._holders

    def new(self, *shape: int) -> Tensor:
        """Room for numbers."""
        return self.votes.poses.new_empty(shape, dtype=self.dtype)

    def partition(self, form: Form, kind: Kind, out: Tensor) -> Partition:
        """Log-partitions of the logits, in `out`."""
        slots = self._slot_values(kind)
        launch(passes.partition, self.grid, self.given, form, slots, self.sizes, BY_TYPE=kind.by_type, **self.options)
        self.fold(slots, out, by_child=kind.by_child, log=True)
        return as_partition(out, kind)

    def extremes(self, form: Form, kind: Kind, out: Tensor) -> Partition:
        """Largest and smallest logits, and the first parents that have them, in `out`: (4, ...)."""
        slots = [self._slot_values(kind, dtype) for dtype in (self.dtype, self.dtype, torch.int32, torch.int32)]
        given = (self.given, form, *slots, self.sizes)
        launch(max_min.extremes, self.grid, *given, BY_TYPE=kind.by_type, **self.options)
        found = as_partition(out, kind)
        holders = self._holders_of(kind.by_child)
        grid, *sizes, options = self._fold_sizes(slots[0], out[0])
        smallest, largest = (slots[0], slots[2]), (slots[1], slots[3])
        best = (found.lower, found.first_smallest)
        launch(max_min.fold_extremes, grid, *smallest, *holders, *best, *sizes, SIGN=-1, **options)
        best = (out[0], found.first_largest)
        launch(max_min.fold_extremes, grid, *largest, *holders, *best, *sizes, SIGN=1, **options)
        return found

    def moments(
        self, form: Form, partition: Partition, *, mass: bool = True, spread: bool = True, worth: bool = False
    ) -> Sums:
        """Masses, sums (or means), squared deviations and what is gained, of chunks of slots."""
        rows = (self.num_chunks, self.num_rows)
        sums = Sums(
            mass=self.new(*rows) if mass else None,
            first=self.new(*rows, self.vote_size),
            second=self.new(*rows, self.vote_size) if spread else None,
            worth=self.new(*rows) if worth else None,
        )
        launch(passes.moments, self.grid, self.given, form, partition, sums, self.sizes, **self.options)
        return sums

    def couplings(self, form: Form, partition: Partition, out: Tensor, *, amended: bool) -> None:
        """Couplings (B, S, N, J), multiplied by activations if amended."""
        room = self.room_for(out)
        given = self.given if amended else self.given._replace(activations=None)
        launch(passes.couplings, self.grid, given, form, partition, room, self.sizes, **self.options)
        deliver(room, out)

    def responses(self, form: Form, response: Form, partition: Partition, kind: Kind) -> tuple[Partition, Tensor]:
        """sum R e of each softmax, and of each child, (B, I): the gradient of its activation."""
        slots = self._slot_values(kind)
        lower = None if partition.lower is None else self._slot_values(kind)
        given = (self.given, form, response, partition, slots, lower, self.sizes)
        launch(passes.responses, self.grid, *given, BY_TYPE=kind.by_type, **self.options)
        means = self.new(*kind.shape(self.votes))
        self.fold(slots, means, by_child=kind.by_child)
        found = as_partition(means, kind)
        if lower is not None:
            of_lower = self.new(*means.shape)
            self.fold(lower, of_lower, by_child=kind.by_child)
            found = found._replace(lower=of_lower)
        if kind.by_child or self.votes.child is None:
            return found, means.sum(-1)
        of_children = self.new(self.batch_size, self.num_children, 1)
        self.fold(means, of_children, by_child=True)
        return found, of_children.sum(-1)

    def fold(self, values: Tensor, out: Tensor, *, by_child: bool, log: bool = False) -> None:
        """Over layers and the slots that hold a child: (layers, B, S N, C) -> (B, I, C)."""
        grid, *sizes, options = self._fold_sizes(values, out)
        options |= {"LOG": log, "LEAKY": log and self.leaky}
        launch(passes.fold, grid, values, *self._holders_of(by_child), out, *sizes, **options)

    def num_softmaxes(self, by_child: bool) -> Tensor:
        """Children, or slots, that take part: (B,)."""
        votes, slots = self.votes, self.num_windows * self.num_slots
        takes = self.new(1, self.batch_size, slots, 1).fill_(1)
        if votes.child_mask is not None:
            mask = votes.child_mask if votes.child is None else votes.child_mask[:, votes.child.flatten()]
            takes *= mask.view(takes.shape)
        if votes.window_mask is not None:
            takes *= votes.window_mask.repeat_interleave(self.num_slots, 1).view(takes.shape)
        found = self.new(self.batch_size, self.num_children if by_child else slots, 1)
        self.fold(takes, found, by_child=by_child)
        return (found > 0).sum((1, 2)).to(self.dtype)

    def child_weights(self) -> Tensor:
        """Activations of the children, 0 for masked ones: (B, I)."""
        assert self.votes.activations is not None
        return self.of_voting(self.votes.activations.to(self.dtype))

    def of_voting(self, values: Tensor) -> Tensor:
        """Values of children, 0 for masked ones: (B, I)."""
        mask = self.votes.child_mask
        return values if mask is None else torch.where(mask, values, torch.zeros_like(values))

    def room_for(self, target: Tensor) -> Tensor:
        """Where kernels write what `target` is to hold: in their own type."""
        return target if target.dtype == self.dtype and target.is_contiguous() else self.new(*target.shape)

    def _slot_values(self, kind: Kind, dtype: torch.dtype | None = None) -> Tensor:
        layers, columns = (1, self.num_parents) if kind.by_type else (self.num_blocks, 1)
        shape = (layers, self.batch_size, self.num_windows * self.num_slots, columns)
        return self.votes.poses.new_empty(shape, dtype=dtype or self.dtype)

    def _holders_of(self, by_child: bool) -> Slots | tuple[None, None]:
        holders = self.holders if by_child else None
        return (None, None) if holders is None else holders

    def _fold_sizes(self, values: Tensor, out: Tensor) -> tuple[Any, ...]:
        """The grid, the sizes and the options of what folds values of slots."""
        columns, slots = out.shape[-1], self.num_windows * self.num_slots
        num_layers = values.numel() // (self.batch_size * slots * columns)
        column_tile = min(64, power_of_two(columns))
        num_rows, row_tile = out.numel() // columns, 512 // column_tile
        grid = (-(-num_rows // row_tile), -(-columns // column_tile))
        options = {"RT": row_tile, "CT": column_tile, "num_warps": 4}
        return grid, num_rows, out.shape[1], slots, num_layers, columns, options

    def _tile(self, entries: int | None = None) -> Tile:
        least = tiles.DOT_SAMPLES if self.dots else 1
        return choose_tile(self.num_samples, self.num_parents, self.votes.rows, self.outer, entries, least)

    def _shape(self, tile: Tile) -> Shape:
        values = (self.num_parents, self.votes.rows, self.inner, self.outer, *tile[:4], TYPES[self.dtype])
        dot = product_precision(self.votes.poses.dtype) if self.dots else ""
        return Shape(*map(constant, (*values, dot, self.inner_tile)))

    @property
    def inner_tile(self) -> int:
        """Entries of a pose in a product of tiles."""
        return max(16, min(power_of_two(self.inner), tiles.LARGEST_INNER))


class VoteGradients:
    """Gradients of poses, weights, bias and given logits of a layer, added up over weighted sums.

    Args:
        layer: whose votes are differentiated.
        wanted: tensors to fill, by name; "logits" among them.
        num_sums: weighted sums that are differentiated.
    """

    def __init__(self, layer: Layer, wanted: dict[str, Tensor], num_sums: int) -> None:
        self.layer, self.wanted, self.seen = layer, wanted, 0
        votes = layer.votes
        if layer.dots:
            self.tile, self.inner_tile = layer.tile, layer.inner_tile
        else:
            inner = min(power_of_two(layer.inner), tiles.LARGEST_UNROLLED)
            self.tile = layer._tile(min(max(1, tiles.WEIGHT_ENTRIES // inner), layer.tile.entries))
            self.inner_tile = min(inner, max(1, tiles.WEIGHT_ENTRIES // self.tile.entries))
        num_blocks = -(-layer.num_parents // self.tile.parents) * -(-layer.inner // self.inner_tile)
        num_tiles = -(-layer.num_samples // self.tile.samples)
        steps = -(-layer.num_slots // layer.num_transforms) * num_tiles
        self.owners = None if votes.transform is None else Slots.of(votes.transform, layer.num_transforms)
        alone = layer.dots or self.owners is not None or layer.num_transforms % tiles.GROUP
        num_groups = layer.num_transforms // (group := 1 if alone else tiles.GROUP)
        chunk, num_chunks = cut(steps, num_groups * num_blocks)
        self.sizes, self.grid = layer.sizes._replace(chunk=chunk), (num_groups, num_chunks, num_blocks)
        self.options = layer.options | {"SHAPE": layer._shape(self.tile), "KT": self.inner_tile, "GROUP": group}
        room: dict[str, tuple[int, ...]] = {
            "poses": (layer.num_blocks, layer.num_samples, layer.num_slots, votes.poses.shape[2]),
            "weight": (num_chunks, *votes.weight.shape),
            "bias": (num_chunks, layer.num_transforms, layer.num_parents, layer.vote_size),
            "initial_logits": (layer.num_samples, layer.num_slots, layer.num_parents),
            "worth": (layer.grid[0], layer.num_slots, layer.num_parents),
        }
        self.rooms = {name: layer.new(num_sums, *shape) for name, shape in room.items() if name in wanted}

    def add(
        self,
        form: Form,
        response: Form,
        partition: Partition,
        means: Partition | None,
        *,
        sums: bool = False,
        squares: bool = False,
    ) -> Sums:
        """One weighted sum; without `means` its couplings are constants.

        Returns:
            sums of g, g d and g d^2.
        """
        layer, flows = self.layer, means is not None
        rows = (layer.num_chunks, layer.num_rows)
        found = Sums(
            mass=layer.new(*rows) if squares else None,
            first=layer.new(*rows, layer.vote_size) if sums else None,
            second=layer.new(*rows, layer.vote_size) if squares else None,
        )
        rooms = {name: room[self.seen] for name, room in self.rooms.items()}
        self.seen += 1
        logits = rooms.get("initial_logits")
        if logits is not None and not (flows and form.given is not None):
            logits.zero_()
            logits = None
        terms = (layer.given, form, response, partition, partition if means is None else means)
        if sums or logits is not None or rooms.keys() & {"poses", "worth"}:
            given = (*terms, found, rooms.get("poses"), logits, rooms.get("worth"), layer.sizes)
            launch(passes.gradients, layer.grid, *given, FLOWS=flows, **layer.options)
        if "weight" in rooms or "bias" in rooms:
            start, listed = (None, None) if self.owners is None else self.owners
            launch(passes.weight_gradients, self.grid,
                *terms, start, listed, rooms.get("weight"), rooms.get("bias"), self.sizes, layer.num_transforms,
                FLOWS=flows, **self.options,
            )  # fmt: skip
        return found

    def finish(self) -> None:
        """Fill what is wanted."""
        layer = self.layer
        for name, rooms in self.rooms.items():
            target = self.wanted[name]
            if name == "poses":
                room = layer.room_for(target)
                layer.fold(rooms, room, by_child=True)
                deliver(room, target)
            elif name == "initial_logits":
                target.copy_(rooms.sum(0).view_as(target))
            elif name == "worth":
                target.copy_(rooms.flatten(0, 1).sum(0).view(-1, *target.shape).sum(0))
            else:
                target.copy_(rooms.flatten(0, 1).sum(0))


def product_precision(dtype: torch.dtype) -> str:
    """How products of tiles are rounded: by torch's own setting for float32, exactly for the other types.

    bfloat16 has fewer digits than tf32, so that its products are exact there.
    """
    if dtype == torch.float64 or torch.version.hip is not None:  # AMD's units multiply float32 as it is
        return "ieee"
    if dtype == torch.bfloat16:
        return "tf32"
    try:
        return {"high": "tf32x3", "medium": "tf32"}.get(torch.get_float32_matmul_precision(), "ieee")
    except RuntimeError:  # it was set by its newer name, which the function refuses to tell
        return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


def constant(value: Any) -> Any:
    """What a compiler knows; the interpreter takes it as it is."""
    return value if interprets() else tl.constexpr(value)


def as_partition(values: Tensor, kind: Kind) -> Partition:
    """Numbers of each softmax as kernels take them, (B, I, C); of max-min couplings (4, B, I, C)."""
    rest: dict[str, Tensor] = {}
    if values.dim() == 4:
        values, rest["lower"], *firsts = values
        whole = {4: torch.int32, 8: torch.int64}[values.element_size()]
        rest["first_smallest"], rest["first_largest"] = (first.view(whole) for first in firsts)
    return Partition(**{"by_type" if kind.by_type else "by_child" if kind.by_child else "by_slot": values}, **rest)


def deliver(room: Tensor, target: Tensor) -> None:
    """What kernels have written, in the type of the target."""
    if room is not target:
        target.copy_(room.view_as(target))
