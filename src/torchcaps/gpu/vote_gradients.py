"""What a weighted sum passes back to poses, transformations, bias and given logits."""

from torch import Tensor

from torchcaps.gpu import tiles
from torchcaps.gpu.arguments import Form, Partition, Sums
from torchcaps.gpu.kernels import gradients
from torchcaps.gpu.launch import launch
from torchcaps.gpu.layer import Layer, Slots, deliver
from torchcaps.gpu.tiles import cut, power_of_two


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
            launch(gradients.gradients, layer.grid, *given, FLOWS=flows, **layer.options)
        if "weight" in rooms or "bias" in rooms:
            start, listed = (None, None) if self.owners is None else self.owners
            launch(gradients.weight_gradients, self.grid,
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
