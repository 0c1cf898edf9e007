"""What is timed: shapes and routings, and the least work they ask for."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from math import prod
from typing import Any

from torchcaps.capsules import matrix_side
from torchcaps.checks import check_choice
from torchcaps.routing import backend_names, find_routing, routing_names
from torchcaps.routing.backend import REFERENCE
from torchcaps.windows import Windows, per_axis

GPU = "triton"  # the backend of GPUs, timed by `torchcaps.benchmark.gpu`
FASTEST, *OTHERS = (name for name in backend_names() if name != GPU)  # as this package registers them
# The reference, eager and compiled, and the backends that are held against it, from the hungriest to the thriftiest.
COMPILE, TEXTBOOK = "compile", "textbook"
HELD_AGAINST = tuple(name for name in (*reversed(OTHERS), FASTEST) if name != REFERENCE)
VARIANTS = (REFERENCE, COMPILE, *HELD_AGAINST)
WITH_TEXTBOOK = (TEXTBOOK, *VARIANTS)  # dynamic routing in dense layers also as tutorials write it


@dataclass(frozen=True, kw_only=True)
class Rival:
    """Another routing on the same layer, timed on the fastest backend beside the case."""

    name: str
    routing: str
    options: dict[str, Any]

    @classmethod
    def of(cls, routing: str) -> "Rival":
        """A registered routing that updates its couplings as often as dynamic routing does in three iterations."""
        options = find_routing(routing).with_updates(2)
        iterations = "".join(f" r {number}" for number in options.values())
        return cls(name=f"{routing}{iterations}", routing=routing, options=options)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One capsule layer with its input, as plain values that fit into JSON.

    Attributes:
        layer: "dense", "conv" (one or two dimensions, as `spatial` says) or "class".
        num_children: I of a dense layer, otherwise child types per position.
        routing, options: as `torchcaps.nn.create_routing` takes them.
        variants: which of WITH_TEXTBOOK are timed.
        rivals: what the fastest backend is compared with in the same process.
    """

    name: str
    layer: str
    batch_size: int
    num_children: int
    num_parents: int
    in_size: int = 16
    out_size: int = 16
    spatial: tuple[int, ...] = ()
    kernel_size: int = 0
    stride: int = 1
    pose: str = "vector"
    routing: str = "dynamic"
    options: dict[str, Any] = field(default_factory=dict)
    variants: tuple[str, ...] = VARIANTS
    rivals: tuple[Rival, ...] = ()

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Case":
        """Read back what `asdict` and JSON made of a case."""
        rivals = tuple(Rival(**rival) for rival in values["rivals"])
        spatial, variants = tuple(values["spatial"]), tuple(values["variants"])
        return cls(**(values | {"rivals": rivals, "spatial": spatial, "variants": variants}))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @property
    def windows(self) -> Windows | None:
        """The windows of a convolutional layer."""
        if self.layer != "conv":
            return None
        axes = len(self.spatial)
        kernel, stride = per_axis("kernel_size", self.kernel_size, axes), per_axis("stride", self.stride, axes)
        return Windows(self.spatial, self.num_children, kernel, stride)

    @property
    def positions(self) -> tuple[int, ...]:
        """Parent positions of a convolutional layer, () otherwise."""
        return self.windows.output if self.windows else ()

    @property
    def num_votes(self) -> int:
        """Pairs of a child and a parent that sees it, over the whole batch."""
        slots = prod(self.spatial) * self.num_children
        if (windows := self.windows) is not None:
            slots = prod(windows.output) * windows.num_slots
        return self.batch_size * slots * self.num_parents

    @property
    def description(self) -> str:
        """Shapes in a few words."""
        children = "x".join(map(str, (*self.spatial, self.num_children)))
        parents = str(self.num_parents)
        if self.layer == "conv":
            parents = "x".join(map(str, (*self.positions, self.num_parents))) + f" k{self.kernel_size} s{self.stride}"
        options = "".join(f" {name}={value}" for name, value in self.options.items())
        sizes = f"{self.in_size} -> {self.out_size}"
        return f"B{self.batch_size}, {children} -> {parents}, {sizes} {self.pose}, {self.routing}{options}"

    def smaller(self) -> "Case":
        """The same layer, small enough for float64 gradients on the reference; fast paths are kept."""
        if self.layer == "conv":
            spatial = tuple(min(size, self.kernel_size + 2 * self.stride + 1) for size in self.spatial)
        else:
            spatial = tuple(min(size, 3) for size in self.spatial)
        num_children = min(self.num_children, 4 if spatial else 40)
        return replace(self, batch_size=min(self.batch_size, 9), num_children=num_children, spatial=spatial)

    def with_routing(self, routing: str, **options: Any) -> "Case":
        """The same layer under another routing, without rivals."""
        return replace(self, routing=routing, options=options, rivals=())

    def flops(self) -> int:
        r"""FLOP of a forward pass that forms every vote once.

        A vote of D entries costs 2 D K (K is the inner size of its transformation), and routing passes over it: for r
        weighted sums, 2 D r + 2 D (r - 1); for EM with t iterations, 6 D t (mean, squared deviations, variance) +
        2 D (t - 1) (log-densities). Forward and backward together count three times as much. A routing that
        does not tell its cost counts the votes alone.
        """
        inner = self.in_size if self.pose == "vector" else matrix_side(self.in_size)
        entry = find_routing(self.routing) if self.routing in routing_names() else None
        routing = 0
        if entry is not None and entry.cost is not None:
            routing = entry.cost((entry.options | self.options).get("num_iterations", 0))
        return self.num_votes * self.out_size * (2 * inner + routing)

    def bytes_moved(self) -> int:
        """Bytes of a forward pass that reads children and weights once and writes the parents (float32)."""
        windows = self.windows
        children = self.batch_size * prod(self.spatial) * self.num_children * self.in_size
        parents = self.batch_size * prod(self.positions) * self.num_parents * self.out_size
        owners = (windows.num_slots if windows else self.num_children) * self.num_parents
        weights = owners * (self.in_size * self.out_size if self.pose == "vector" else self.in_size)
        return 4 * (children + parents + weights)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One layer at growing sizes: time should be a straight line in each axis."""

    case: Case
    sizes: dict[str, tuple[int, ...]]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Sweep":
        """Read back what JSON made of a sweep."""
        return cls(case=Case.from_dict(values["case"]), sizes={k: tuple(v) for k, v in values["sizes"].items()})

    def at(self, axis: str, size: int) -> Case:
        """The layer with `size` along one axis."""
        changed: dict[str, Any] = {axis: size}
        return replace(self.case, **changed)


THREE = {"num_iterations": 3}
WINDOW = THREE | {"competition": "window"}
MATRIX = {"pose": "matrix", "routing": "em"}
EM_RIVALS = (Rival(name="global competition", routing="em", options=THREE | {"competition": "global"}),)
DENSE_RIVALS = tuple(Rival.of(name) for name in routing_names() if name != "dynamic")
QUICK_MODEL = "model-capsnet-small"
QUICK_LOOK = ("digitcaps", "em-conv-14", "text-conv")  # a few only: every process takes seconds to start


def make_cases(*, quick: bool) -> tuple[Case, ...]:
    """All cases: the published layers, or for a quick look smaller ones of the same kinds."""
    size = (lambda full, small: small) if quick else (lambda full, small: full)
    batch, types, side = size(16, 2), size(32, 8), size(14, 9)
    conv_14 = Case(
        name="em-conv-14", layer="conv", batch_size=batch, spatial=(side, side), num_children=types, num_parents=types,
        kernel_size=3, stride=2, options=WINDOW, rivals=EM_RIVALS, **MATRIX,
    )  # fmt: skip
    conv_6 = replace(conv_14, name="em-conv-6", spatial=(6, 6), stride=1)
    cases = [
        Case(
            name="digitcaps", layer="dense", batch_size=size(128, 32), num_children=size(1152, 144), num_parents=10,
            in_size=8, options=THREE, variants=WITH_TEXTBOOK, rivals=DENSE_RIVALS,
        ),
        Case(
            name="large", layer="dense", batch_size=size(16, 8), num_children=size(4096, 512),
            num_parents=size(64, 32), options=THREE, variants=WITH_TEXTBOOK,
        ),
        conv_14,
        conv_6,
        Case(
            name="class-caps", layer="class", batch_size=batch, spatial=(4, 4), num_children=types, num_parents=5,
            options=THREE, **MATRIX,
        ),
        Case(
            name="text-conv", layer="conv", batch_size=size(64, 4), spatial=(size(400, 26),), num_children=types,
            num_parents=16, kernel_size=3, options=THREE,
        ),
        Case(
            name="text-class", layer="class", batch_size=size(64, 4), spatial=(size(398, 24),), num_children=16,
            num_parents=6, options=THREE,
        ),
    ]  # fmt: skip
    if not quick:
        cases += [
            replace(case, name=f"{case.name}-b64", batch_size=64, variants=HELD_AGAINST) for case in (conv_14, conv_6)
        ]
    return tuple(replace(case, variants=tuple(v for v in case.variants if v != COMPILE)) if quick else case
                 for case in cases)  # fmt: skip


def make_sweeps(*, quick: bool) -> tuple[Sweep, ...]:
    """Batch, children and parents, each from a base by factors of two."""

    def doubling(start: int) -> tuple[int, ...]:
        return tuple(start << step for step in range(3 if quick else 5))

    dense = Case(
        name="dynamic, dense", layer="dense", batch_size=32, num_children=256, num_parents=16, in_size=8, options=THREE
    )
    conv = Case(
        name="em, convolutional", layer="conv", batch_size=4, spatial=(8, 8), num_children=8, num_parents=8,
        kernel_size=3, options=WINDOW, **MATRIX,
    )  # fmt: skip
    return (
        Sweep(
            case=dense, sizes={"batch_size": doubling(16), "num_children": doubling(128), "num_parents": doubling(8)}
        ),
        Sweep(case=conv, sizes={"batch_size": doubling(2), "num_children": doubling(4), "num_parents": doubling(8)}),
    )


def select(cases: tuple[Case, ...], names: Iterable[str]) -> tuple[Case, ...]:
    """The cases of these names, all if there are none."""
    known = {case.name: case for case in cases}
    return tuple(known[check_choice("case", name, known)] for name in names) or cases


def own_cases(routing: str, *, quick: bool) -> tuple[Case, ...]:
    """The dense layers under a registered routing, or under one of the user's own, which has no kernels of ours."""
    dense = [case for case in make_cases(quick=quick) if case.layer == "dense"]
    left_out = (COMPILE,) if routing in routing_names() else (COMPILE, FASTEST)
    variants = tuple(name for name in VARIANTS if name not in left_out)
    return tuple(replace(case.with_routing(routing), variants=variants) for case in dense)
