"""Random routing problems: every routing, kind of votes, option and backend, at ordinary and extreme scales.

A problem is drawn from its number alone, so that one that fails can be drawn again. By hand, with a record:

    PYTHONPATH=tests python -m support.fuzzing COUNT OUT.json [FIRST]

With TRITON_INTERPRET=1 the kernels of GPUs answer. Problems that they do not take, or that have many slots, are left
out: numbers go on until COUNT problems have been answered.
"""

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from torchcaps import routing as routings
from torchcaps.capsules import Capsules
from torchcaps.environment import environment
from torchcaps.routing import RoutingResult, why_not
from torchcaps.votes import ClassVotes, ConvVotes, DenseVotes, TensorVotes, Votes

ALGORITHMS = ("dynamic", "kmeans", "entropy", "em", "uniform")
LATER = ("vb", "heinsen", "self", "max_min", "attention", "self_attention")  # they take the place of one of the first
GAUSSIAN = ("em", "vb", "heinsen")  # couplings follow from densities
KINDS = ("tensor", "dense", "conv 1", "conv 2", "class")
BACKENDS = ("triton",) if os.environ.get("TRITON_INTERPRET") == "1" else ("chunked", "fused")
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17)
# Of the call, differentiated like the votes: the name of the leaf, and of the option.
TENSOR_OPTIONS = {name: name for name in ("beta_a", "beta_u", "beta_use", "beta_ignore", "scale", "shift")}
TENSOR_OPTIONS |= {"initial_logits": "initial_logits", "coupling bias": "bias"}
LARGEST = 1e6  # of any vote; poses and weights share it
# A backend may differ from the reference by what rounding of the input does to the reference itself, times this, and
# by these shares of the largest entry. A child 1e5 times as large as the others costs EM's kernel digits of gradients.
ROUNDING = 300.0
PLAIN = {torch.float32: 1e-4, torch.float64: 1e-9}
EXTREME = {torch.float32: 1e-1, torch.float64: 1e-4}


@dataclass
class Problem:
    """One call, and what it depends on."""

    number: int
    algorithm: str
    kind: str
    dtype: torch.dtype
    pattern: str
    options: dict[str, Any]
    leaves: dict[str, Tensor]
    describe: Callable[[dict[str, Tensor]], Votes]
    return_trace: bool

    def __str__(self) -> str:
        shapes = {name: tuple(leaf.shape) for name, leaf in self.leaves.items()}
        return f"problem {self.number}: {self.algorithm} on {self.kind}, {self.pattern}, {self.options}, {shapes}"

    @property
    def is_extreme(self) -> bool:
        """Whether votes are far larger than one, or EM's gradients (v - mean) / variance may be rounding alone."""
        if largest(self.leaves["votes" if self.kind == "tensor" else "poses"]) > 100:
            return True
        return self.algorithm in GAUSSIAN and self.rounding() > 1e-2 * self.least_variance

    @property
    def least_variance(self) -> float:
        """No variance of a parent is smaller; VB's is psi / nu."""
        if self.algorithm != "vb":
            return self.options["eps_var"]
        votes = self.describe(self.leaves)
        return self.options["psi0"] / (self.options.get("nu0", votes.vote_size + 1) + votes.num_slots)

    @property
    def cancellation(self) -> float:
        """The share of the steepest gradient that parts which cancel may leave, in EM those of (v - mean) / variance.

        A single child is its parents' mean, and its exact v - mean is 0; the rounding of v is not. In VB they are
        derivatives of psi, which torch has to 5e-10, and a kernel to the last digit.
        """
        share = ROUNDING * torch.finfo(self.dtype).eps + (5e-9 if self.algorithm == "vb" else 0)
        return share + 0.1 * self.rounding() / self.least_variance if self.algorithm in GAUSSIAN else share

    @property
    def sharpness(self) -> float:
        """The most that a vote is multiplied with to be a logit of a softmax routing, its parent being of length 1."""
        alpha = self.options.get("alpha", 0.1)
        return {
            "kmeans": self.options.get("inverse_temperature", 1.0),
            "entropy": 1 / min(alpha if isinstance(alpha, list) else [alpha]),
        }.get(self.algorithm, self.options.get("num_iterations", 1))

    def rounding(self) -> float:
        """How far a vote may be from its exact value."""
        return 8 * torch.finfo(self.dtype).eps * largest(self.describe(self.leaves).materialise())

    def to(self, dtype: torch.dtype) -> "Problem":
        return replace(self, dtype=dtype, leaves={name: leaf.to(dtype) for name, leaf in self.leaves.items()})

    def call(self, leaves: dict[str, Tensor], backend: str) -> RoutingResult:
        tensors = {option: leaves[name] for name, option in TENSOR_OPTIONS.items() if name in leaves}
        routing = getattr(routings, f"{self.algorithm}_routing")
        votes = self.describe(leaves)
        return routing(votes, backend=backend, return_trace=self.return_trace, **tensors, **self.options)

    def refusal(self, backend: str) -> str | None:
        tensors = {option: self.leaves[name] for name, option in TENSOR_OPTIONS.items() if name in self.leaves}
        routing = getattr(routings, f"{self.algorithm}_routing")
        return why_not(backend, routing, self.describe(self.leaves), **tensors, **self.options)

    def solve(self, backend: str, nudge: float = 0.0, noise_seed: int = 0) -> dict[str, Tensor]:
        """Everything that comes out, gradients too; nudged inputs are moved by a few roundings."""
        source = torch.Generator().manual_seed(self.number)
        noises, leaves = torch.Generator().manual_seed(noise_seed), {}
        torch.manual_seed(self.number)  # `partial` draws at random
        for name, leaf in self.leaves.items():
            noise = torch.randn(leaf.shape, generator=noises, dtype=leaf.dtype)
            moved = leaf * (1 + nudge * noise)
            leaves[name] = (moved.clamp(0, 1) if name == "activations" else moved).requires_grad_()
        result = self.call(leaves, backend)
        found = {"poses": result.capsules.poses, "parents": result.capsules.activations, "coupling": result.coupling}
        for index, step in enumerate(result.trace or ()):
            found |= {f"trace {index}.{part}": value for part, value in enumerate(step) if value is not None}
        weights = [torch.randn(part.shape, generator=source).to(part.dtype) for part in result.capsules]
        loss = sum((part * weight).sum() for part, weight in zip(result.capsules, weights, strict=True))
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
            found[f"gradient of {name}"] = torch.zeros_like(leaf) if gradient is None else gradient
        return {name: value.detach() for name, value in found.items()}


def draw(number: int) -> Problem:
    """The problem of a number."""
    choose = random.Random(number)
    torch.manual_seed(number)
    algorithm, kind = choose.choice(ALGORITHMS), choose.choice(KINDS)
    dtype = choose.choice((torch.float32, torch.float64))
    size = lambda: choose.choice(SIZES)  # noqa: E731
    matrix = choose.random() < 0.4 and kind != "tensor"
    in_size, out_size = size(), size()
    if matrix:
        in_size = out_size = choose.choice((1, 2, 3, 4)) ** 2
    if kind == "class":
        out_size = max(out_size, 2)
        if matrix:
            in_size = out_size = choose.choice((2, 3, 4)) ** 2
    batch, types, parents = choose.choice((0, 1, 1, 2, 3, 5)), choose.choice((1, 2, 3, 5)), size()
    spatial, kernel, stride = [], [], []
    for _ in range({"conv 1": 1, "conv 2": 2, "class": choose.choice((1, 2))}.get(kind, 0)):
        kernel.append(choose.choice((1, 2, 3)))
        spatial.append(kernel[-1] + choose.choice((0, 1, 2, 4)))
        stride.append(choose.choice((1, 2, 3)))
    children = (size(),) if kind in ("tensor", "dense") else (*spatial, types)
    owner = choose.choice(("full", "shared", "factorised"))
    leaves = _leaves(choose, kind, batch, children, kernel, parents, in_size, out_size, matrix, owner)
    pattern = _fill(choose, leaves)
    if algorithm == "em":
        betas = 10 ** choose.uniform(-2, 2)
        shape = choose.choice(((), (parents,)))
        leaves |= {"beta_a": betas * torch.randn(shape), "beta_u": betas * torch.randn(shape)}
    masks = {}
    if choose.random() < 0.3:
        masks["mask"] = torch.rand(batch, *children) < choose.choice((0.0, 0.5, 0.9))
    if kind.startswith("conv") and choose.random() < 0.3:
        windows = [(n - k) // s + 1 for n, k, s in zip(spatial, kernel, stride, strict=True)]
        masks["window_mask"] = torch.rand(batch, *windows) < 0.6

    def describe(leaves: dict[str, Tensor]) -> Votes:
        if kind == "tensor":
            return TensorVotes(leaves["votes"], activations=leaves["activations"], **masks)
        weight = (leaves["child factor"], leaves["weight"]) if owner == "factorised" else leaves["weight"]
        described = {"pose": "matrix" if matrix else "vector", "sharing": owner, "bias": leaves.get("bias"), **masks}
        capsules = Capsules(leaves["poses"], leaves["activations"])
        if kind == "dense":
            return DenseVotes(capsules, weight, **described)
        if kind == "class":
            return ClassVotes(capsules, weight, coordinates=coordinates, **described)
        return ConvVotes(capsules, weight, kernel_size=tuple(kernel), stride=tuple(stride), **described)

    coordinates = choose.random() < 0.5
    options = _options(choose, algorithm, kind)
    return_trace = choose.random() < 0.2
    if algorithm == "em":
        options["detach_couplings"] = choose.random() < 0.2
    # drawn last, so that the rest of a problem is what its number has always drawn
    if kind.startswith("conv") and choose.random() < 1 / 3:
        options["competition"] = "position"
    if algorithm == "em" and choose.random() < 0.3:
        options["damping"] = choose.choice((0.1, 0.5, 0.9))
    if choose.random() < 0.25:
        leaves["initial_logits"] = choose.choice((0.1, 1.0, 30.0)) * torch.randn(describe(leaves).coupling_shape)
    if choose.random() < len(LATER) / (len(ALGORITHMS) + len(LATER)):
        algorithm = choose.choice(LATER)
        competition = {name: options[name] for name in ("competition",) if name in options}
        options = competition | _later_options(choose, algorithm, out_size)
        leaves = {name: leaf for name, leaf in leaves.items() if not name.startswith("beta")}
        leaves |= _later_leaves(choose, algorithm, describe(leaves))
    return Problem(
        number=number,
        algorithm=algorithm,
        kind=kind,
        dtype=dtype,
        pattern=pattern,
        options=options,
        leaves={name: leaf.to(dtype) for name, leaf in leaves.items()},
        describe=describe,
        return_trace=return_trace,
    )


def _leaves(choose, kind, batch, children, kernel, parents, in_size, out_size, matrix, owner) -> dict[str, Tensor]:
    """Tensors of the right shapes with entries of about one."""
    activations = {
        "some": lambda shape: torch.rand(shape),
        "all": lambda shape: torch.ones(shape),
        "none": lambda shape: torch.zeros(shape),
        "either": lambda shape: torch.rand(shape).round(),
    }[choose.choice(("some", "some", "all", "none", "either"))]((batch, *children))
    if kind == "tensor":
        return {"votes": torch.randn(batch, *children, parents, out_size), "activations": activations}
    side = round(in_size**0.5)
    rows, columns = (side, side) if matrix else (in_size, out_size)
    owners = {"dense": children, "class": children[-1:]}.get(kind, (*kernel, children[-1]))
    leaves = {"poses": torch.randn(batch, *children, in_size), "activations": activations}
    if owner == "full":
        leaves["weight"] = torch.randn(*owners, parents, rows, columns)
    else:
        leaves["weight"] = torch.randn(parents, rows, columns)
    if owner == "factorised":
        leaves["child factor"] = torch.randn(*owners, rows, rows)
    if choose.random() < 0.4:
        leaves["bias"] = torch.randn(*(owners if owner == "full" else ()), parents, out_size)
    return leaves


def _fill(choose: random.Random, leaves: dict[str, Tensor]) -> str:
    """Scale the votes, or make them degenerate; says how."""
    first = "votes" if "votes" in leaves else "poses"
    pattern = choose.choice(("plain", "plain", "scaled", "scaled", "zeros", "equal children", "one huge", "equal"))
    scale = 1.0
    if pattern == "scaled":
        scale = 10 ** choose.uniform(-10, 5)
    if pattern == "zeros":
        scale = 0.0
    if pattern == "equal children" and leaves[first].shape[1]:
        leaves[first] = leaves[first][:, :1].expand_as(leaves[first])
    if pattern == "one huge" and leaves[first].shape[1]:
        leaves[first][:, 0] *= 1e5
    if pattern == "equal":
        leaves[first] = torch.full_like(leaves[first], choose.choice((1e5, 1.0, 1e-8)))
    leaves[first] = (scale * leaves[first]).clamp(-LARGEST, LARGEST)
    return pattern if scale == 1 else f"{pattern} {scale:.1e}"


def _options(choose: random.Random, algorithm: str, kind: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    iterations = choose.choice((1, 2, 3, 5))
    if algorithm != "uniform":
        options["num_iterations"] = iterations
    if kind.startswith("conv"):
        options["competition"] = choose.choice(("window", "global"))
    if algorithm == "em":
        options["cost_scale"] = choose.choice(("mass", "paper"))
        options["activation"] = choose.choice(("mdl", "mixing", "entropy"))
        options["eps_var"] = choose.choice((1e-6, 1e-3))
        options["inverse_temperature"] = choose.choice((1 / 16, 1.0, 1.0, [0.5 + step for step in range(iterations)]))
        return options
    options["amend"] = choose.random() < 0.3
    if choose.random() < 0.3:
        options["partial"] = choose.choice((0.1, 0.5, 1.0))
    if algorithm in ("dynamic", "uniform"):
        options |= {"leaky": choose.random() < 0.3, "squash_k": choose.choice((1.0, 0.5))}
    if algorithm == "dynamic":
        options["detach_couplings"] = choose.random() < 0.2
    if algorithm == "entropy" and choose.random() < 0.5:
        options["alpha"] = choose.choice((0.01, 1.0, [0.5 / (step + 1) for step in range(iterations)]))
    if algorithm == "kmeans":
        options["metric"] = choose.choice(("dot", "euclidean"))
        if choose.random() < 0.2:
            options["hard"] = True
        else:
            options["inverse_temperature"] = choose.choice((0.1, 1.0, 10.0))
    return options


def _later_options(choose: random.Random, algorithm: str, size: int) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if algorithm not in ("self", "self_attention"):
        options["num_iterations"] = choose.choice((1, 2, 3, 5))
    if algorithm in ("max_min", "attention", "self_attention"):
        options["amend"] = choose.random() < 0.3
        if choose.random() < 0.3:
            options["partial"] = choose.choice((0.1, 0.5, 1.0))
    if algorithm in ("max_min", "attention"):
        options["squash_k"] = choose.choice((1.0, 0.5))
    if algorithm in ("max_min", "vb", "heinsen"):
        options["detach_couplings"] = choose.random() < 0.2
    if algorithm == "heinsen":
        options["eps_var"] = choose.choice((1e-6, 1e-3))
    if algorithm == "vb":
        options |= {name: choose.choice((0.1, 1.0, 1.0, 10.0)) for name in ("alpha0", "kappa0", "psi0")}
        if choose.random() < 0.3:
            options["nu0"] = size - 1 + choose.choice((0.1, 1.0, 30.0))
    return options


def _later_leaves(choose: random.Random, algorithm: str, votes: Votes) -> dict[str, Tensor]:
    """What the call is given beside votes and initial logits."""
    parents, slots, size = votes.num_parents, votes.num_slots, votes.vote_size
    learned = 10 ** choose.uniform(-2, 1)
    if algorithm == "vb":
        shape = choose.choice(((), (parents,)))
        return {name: learned * torch.randn(shape) for name in ("beta_a", "beta_u")}
    if algorithm == "heinsen":
        shapes = ((), (parents,), (slots, parents), (1, parents))
        return {name: learned * torch.randn(choose.choice(shapes)) for name in ("beta_use", "beta_ignore")}
    if algorithm == "attention" and choose.random() < 0.5:
        return {"scale": 1 + 0.3 * torch.randn(size), "shift": 0.3 * torch.randn(size)}
    if algorithm == "self_attention" and choose.random() < 0.5:
        return {"coupling bias": learned * torch.randn(choose.choice(((parents,), (slots, parents))))}
    return {}


def is_ill_posed(problem: Problem, expected: dict[str, Tensor], beside: list[dict[str, Tensor]]) -> bool:
    """Whether rounding alone decides who gets a child, so that only finite answers can be asked for.

    In EM that is so where the rounding of a vote, squared, is not small beside the least variance: equal votes of 1e5
    in float32 have a mean that is wrong by 0.01, a hundred deviations of 1e-6. Where windows compete, the votes of a
    child for two of them may be equal however the input is rounded; then that of a logit decides. Max-min couplings
    jump where all logits become equal, and there all rounding is as good as any.
    """
    unstable = max(distance(expected["coupling"], other["coupling"]) for other in beside) > 1e-3
    if unstable:
        return True
    if problem.algorithm in GAUSSIAN:
        return problem.rounding() ** 2 > 1e-3 * problem.least_variance
    if problem.algorithm == "max_min" and problem.pattern.startswith("equal"):
        return True
    return problem.options.get("competition", "window") != "window" and problem.rounding() * problem.sharpness > 1e-1


def has_noisy_gradients(problem: Problem, expected: dict[str, Tensor]) -> bool:
    """Whether gradients depend on rounding alone.

    In EM they have factors (v - mean) / variance, one for each iteration, and a single child is the mean. The square of
    a tiny length underflows, and with it the gradient of that length. In entropy routing all outputs share the length
    of the longest parent, and two may be equally long.
    """
    lengths = expected["parents"]
    if problem.algorithm in GAUSSIAN:
        is_single = problem.describe(problem.leaves).materialise().shape[-3] == 1
        return is_single and problem.rounding() > problem.least_variance
    if problem.algorithm == "self":  # a mean
        return False
    if ((lengths > 0) & (lengths < (1e-150 if problem.dtype == torch.float64 else 1e-19))).any():
        return True
    if problem.algorithm != "entropy" or lengths.shape[-1] < 2:
        return False
    longest, second = lengths.topk(2).values.unbind(-1)
    return bool((longest - second < 100 * torch.finfo(problem.dtype).eps * longest).any())


def check(problem: Problem) -> tuple[list[str], list[str]]:
    """What is wrong with the answers to a problem, and the backends that answered."""
    expected = problem.solve("reference")
    wrong = [f"reference: {name} is not finite" for name, value in expected.items() if not value.isfinite().all()]
    answers = {}
    with patch.multiple("torchcaps.routing.solvers", CHUNK_BYTES=1, CHUNK_SHARE_OF_WEIGHTS=0):  # one by one
        for backend in BACKENDS:
            if problem.refusal(backend) is None:
                answers[backend] = problem.solve(backend)
    differences = compare(problem, expected, answers, num_nudges=1)
    if differences:  # one draw may not show how far rounding reaches
        differences = compare(problem, expected, answers, num_nudges=30)
    return wrong + differences, ["reference", *answers]


def compare(
    problem: Problem, expected: dict[str, Tensor], answers: dict[str, dict[str, Tensor]], num_nudges: int
) -> list[str]:
    """Where the backends differ from the reference by more than rounding of the input changes the reference."""
    epsilon, wrong = torch.finfo(problem.dtype).eps, []
    tolerance = (EXTREME if problem.is_extreme else PLAIN)[problem.dtype]
    beside = [problem.solve("reference", nudge=4 * epsilon, noise_seed=seed) for seed in range(num_nudges)]
    if problem.dtype == torch.float32:
        beside.append(problem.to(torch.float64).solve("reference"))
    ill_posed, noisy = is_ill_posed(problem, expected, beside), has_noisy_gradients(problem, expected)
    steepest = max(largest(value) for name, value in expected.items() if name.startswith("gradient"))
    for backend, found in answers.items():
        for name, value in found.items():
            if not value.isfinite().all():
                wrong.append(f"{backend}: {name} is not finite")
                continue
            if ill_posed or (noisy and name.startswith("gradient")):
                continue
            exact = expected[name]
            moved = max(distance(exact, other[name]) for other in beside)
            allowed = ROUNDING * moved + tolerance * largest(exact) + 1e-30
            if name.startswith("gradient"):  # parts that cancel leave their rounding
                allowed += problem.cancellation * steepest
            if (error := distance(exact, value)) > allowed:
                wrong.append(f"{backend}: {name} differs by {error:.2e}, rounding explains {allowed:.2e}")
    return wrong


def distance(left: Tensor, right: Tensor) -> float:
    return (left.double() - right.double()).abs().max().item() if left.numel() else 0.0


def largest(value: Tensor) -> float:
    return value.double().abs().max().item() if value.numel() else 0.0


def is_for_interpreter(problem: Problem) -> bool:
    """Whether the kernels of GPUs take a problem, and the interpreter does not take for ever."""
    from support.interpreter import FEW

    return problem.refusal("triton") is None and problem.describe(problem.leaves).num_slots <= FEW


def with_tiles(number: int):
    """Tiles for the interpreter: one program does all, or for every fourth problem many do."""
    from support.interpreter import MANY_PROGRAMS, ONE_PROGRAM, tiles_of

    return tiles_of(ONE_PROGRAM if number % 4 else MANY_PROGRAMS)


def main() -> None:
    wanted, out, first = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0
    answered, patterns, failures, started, checked = Counter(), Counter(), [], time.process_time(), 0
    interpreted = BACKENDS == ("triton",)
    if interpreted:
        from support.interpreter import nan_in_new_memory, quicken

        quicken()
    for number in count(first):
        problem = draw(number)
        if interpreted and not is_for_interpreter(problem):
            continue
        try:
            with (
                nan_in_new_memory() if interpreted else nullcontext(),
                with_tiles(number) if interpreted else nullcontext(),
            ):
                wrong, backends = check(problem)
        except Exception as error:  # a crash is a finding, the others are checked all the same
            wrong, backends = [f"{type(error).__name__}: {error}"], []
        checked += 1
        patterns[problem.pattern.split(" ")[0]] += 1
        answered.update(f"{problem.algorithm}, {backend}" for backend in backends)
        if wrong:
            failures.append({"problem": str(problem), "wrong": wrong})
            print(problem, *wrong, sep="\n  ", file=sys.stderr)
        if checked % 10 == 0 or checked == wanted:
            record = {"problems": checked, "first": first, "last": number, "failures": failures}
            record |= {"answers": dict(sorted(answered.items()))}
            record |= {"cpu_seconds": round(time.process_time() - started), "environment": environment()}
            out.write_text(json.dumps(record, indent=2) + "\n")
        if checked == wanted:
            break
    print(f"{checked} problems, {sum(answered.values())} answers, {len(failures)} problems with a wrong one")


if __name__ == "__main__":
    main()
