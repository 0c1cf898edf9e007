"""Backends: the chunked one against the reference, how one is chosen, and how one refuses."""

import threading
from functools import partial

import pytest
import torch
from torch import Tensor

from support.cases import class_case, conv_case, dense_case, randn, random_mask, tensor_case
from support.situations import amended, every, partially, with_activations, with_logits
from torchcaps.capsules import Capsules
from torchcaps.nn import DynamicRouting
from torchcaps.routing import backend as backends
from torchcaps.routing import (
    backend_names,
    dynamic_routing,
    em_routing,
    entropy_routing,
    kmeans_routing,
    plan,
    register_backend,
    solvers,
    uniform_routing,
    use_backend,
    why_not,
)
from torchcaps.routing.problem import Problem

ROUTINGS = {
    "dynamic": dynamic_routing,
    "dynamic leaky": partial(dynamic_routing, leaky=True),
    "dynamic detached": partial(dynamic_routing, detach_couplings=True),
    "uniform": uniform_routing,
    "kmeans": kmeans_routing,
    "kmeans hard": partial(kmeans_routing, hard=True),
    "kmeans euclidean": partial(kmeans_routing, metric="euclidean"),
    "entropy": entropy_routing,
    "em": partial(em_routing, beta_a=0.5, beta_u=-0.3),
    "em mixing": partial(em_routing, beta_a=0.0, beta_u=0.0, activation="mixing"),
    "em damped": partial(em_routing, beta_a=0.5, beta_u=-0.3, damping=0.2),
}

PROBLEMS = {
    "plain": lambda: with_logits(tensor_case((5, 7, 3, 4))).given(mask=random_mask(5, 7)),
    "class": lambda: class_case(batch_size=5, pose="matrix"),
    **every("conv", lambda: with_logits(conv_case(batch_size=5, mask=True, window_mask=True))),
    "conv position, no logits": lambda: conv_case(batch_size=5, mask=True).given(competition="position"),
}


def solve(name: str, case, backend: str):
    """Result and gradients of everything that can have one."""
    options = case.options
    leaves = {key: leaf.clone().requires_grad_() for key, leaf in case.leaves.items()}
    in_call = {key: value.clone().requires_grad_() for key, value in options.items() if is_floating(value)}
    result = ROUTINGS[name](case.votes(**leaves), **(options | in_call), backend=backend, return_trace=True)
    generator = torch.Generator().manual_seed(1)
    loss = sum((part * torch.randn(part.shape, generator=generator).double()).sum() for part in result.capsules)
    inputs = [*leaves.values(), *in_call.values()]
    return result, torch.autograd.grad(loss, inputs, allow_unused=True)


def is_floating(value) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


@pytest.fixture
def chunks(monkeypatch):
    """Five examples are solved in chunks of two, two and one."""
    monkeypatch.setattr(Problem, "votes_bytes", 5 * 1024)
    monkeypatch.setattr(solvers, "CHUNK_BYTES", 2 * 1024)
    monkeypatch.setattr(solvers, "CHUNK_SHARE_OF_WEIGHTS", 0)
    return [2, 2, 1]


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", ROUTINGS)
def test_chunked_is_the_reference(name, problem, chunks, monkeypatch):
    case = with_activations(PROBLEMS[problem]()) if name.startswith("em") else PROBLEMS[problem]()
    expected, expected_gradients = solve(name, case, "reference")
    parts = count_parts(monkeypatch)
    result, gradients = solve(name, case, "chunked")
    assert parts[:3] == chunks

    def same(ours, theirs):
        if problem == "plain":  # given votes: bit for bit
            assert torch.equal(ours, theirs)
        else:  # votes formed from poses and weights round differently in another batch
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)

    same(result.capsules.poses, expected.capsules.poses)
    same(result.capsules.activations, expected.capsules.activations)
    same(result.coupling, expected.coupling)
    assert len(result.trace) == len(expected.trace)
    for ours, theirs in zip(result.trace, expected.trace):
        for part, other in zip(ours, theirs):
            same(part, other)
    for ours, theirs in zip(gradients, expected_gradients):
        if theirs is None:  # the reference does not use it at all
            assert ours is None or not ours.any()
        else:
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def count_parts(monkeypatch) -> list[int]:
    """The sizes of the parts that batches are cut into from now on."""
    sizes, narrow = [], Problem.narrow

    def counting(problem, start, length):
        sizes.append(length)
        return narrow(problem, start, length)

    monkeypatch.setattr(Problem, "narrow", counting)
    return sizes


@pytest.mark.parametrize("make", [amended, partially], ids=["amend", "partial"])
def test_chunked_knows_the_changes_of_couplings(make, chunks):
    case = make(tensor_case((5, 7, 3, 4)))
    one, other = (dynamic_routing(case.votes(), **case.options, backend=name) for name in ("reference", "chunked"))
    assert torch.equal(one.capsules.poses, other.capsules.poses)
    assert torch.equal(one.coupling, other.coupling)


def test_a_drawn_subset_is_one_for_all_chunks(one_example_chunks):
    coupling = dynamic_routing(randn(6, 7, 9, 4), partial=0.5, backend="chunked").coupling
    drawn = (coupling > 0).flatten(0, 1)
    assert torch.equal(drawn, drawn[:1].expand_as(drawn))
    assert 1 <= drawn[0].sum() < 9


def test_small_batches_are_not_cut(monkeypatch):
    parts = count_parts(monkeypatch)
    result = dynamic_routing(randn(5, 7, 3, 4), backend="chunked")
    assert parts == []
    assert result.trace is None


def test_chunks_follow_the_size_of_the_votes(monkeypatch):
    parts = count_parts(monkeypatch)
    monkeypatch.setattr(solvers, "CHUNK_BYTES", 2 * 7 * 3 * 4 * 8)  # two examples of float64
    dynamic_routing(randn(5, 7, 3, 4), backend="chunked")
    assert parts == [2, 2, 1]
    parts.clear()
    dynamic_routing(randn(5, 7, 3, 4).float(), backend="chunked")
    assert parts == [4, 1]


MEMORY = {  # device and its memory in all -> MiB of votes at a time
    "CPU": ("cpu", None, 8),
    "small GPU": ("cuda", 2 * 2**30, 64),
    "GPU": ("cuda", 24 * 2**30, 384),
    "large GPU": ("cuda", 80 * 2**30, 1280),
    "does not tell": ("meta", None, 256),
}


@pytest.mark.parametrize(("device_type", "memory", "expected"), MEMORY.values(), ids=MEMORY)
def test_chunks_follow_the_device(device_type, memory, expected):
    assert solvers.chunk_bytes(device_type, memory) == expected * 2**20


@pytest.mark.parametrize(("memory", "sizes"), [(None, [2, 2, 1]), (8 * 2**30, [1] * 5), (64 * 2**30, [])])
def test_a_device_with_more_memory_takes_more_examples_at_a_time(memory, sizes, monkeypatch):
    votes = torch.empty(5, 1024, 512, 64, device="meta")  # 128 MiB each
    monkeypatch.setattr(solvers, "total_memory", lambda device: memory)
    parts = count_parts(monkeypatch)
    assert dynamic_routing(votes, backend="chunked").capsules.poses.shape == (5, 512, 64)
    assert parts == sizes


def test_the_memory_of_cpus_is_not_asked():
    assert solvers.total_memory(torch.device("cpu")) is None
    assert solvers.total_memory(torch.device("meta")) is None


def test_chunked_without_gradients(one_example_chunks):
    with torch.no_grad():
        result = dynamic_routing(randn(5, 7, 3, 4).requires_grad_(), backend="chunked")
    assert not result.capsules.poses.requires_grad


# --- choosing -------------------------------------------------------------------------------------------------------


class Recorder:
    """A backend that notes what it was asked and lets the reference answer."""

    name = "recorder"

    def __init__(self, reason: str | None = None) -> None:
        self.reason, self.solved = reason, []

    def why_not(self, problem) -> str | None:
        return self.reason

    def run(self, problem):
        self.solved.append(problem.algorithm.name)
        return problem.algorithm.reference(problem)


@pytest.fixture
def recorders(monkeypatch):
    """Every backend replaced: "fused" refuses, the others take all."""
    recorders = {"fused": Recorder("it rains"), "chunked": Recorder(), "reference": Recorder()}
    for name, recorder in recorders.items():
        recorder.name = name
    monkeypatch.setattr(backends, "_backends", tuple(recorders.values()))
    return recorders


def solved(recorders) -> dict[str, int]:
    return {name: len(recorder.solved) for name, recorder in recorders.items()}


def test_auto_takes_the_first_that_does_not_refuse(recorders):
    dynamic_routing(randn(1, 3, 2, 4))
    assert solved(recorders) == {"fused": 0, "chunked": 1, "reference": 0}
    recorders["fused"].reason = None
    dynamic_routing(randn(1, 3, 2, 4))
    assert solved(recorders) == {"fused": 1, "chunked": 1, "reference": 0}


@pytest.mark.parametrize("name", ["dynamic", "uniform", "kmeans", "entropy", "em"])
def test_a_backend_asked_for_by_name_never_falls_back(name, recorders):
    routing = partial(ROUTINGS[name], activations=torch.ones(1, 3).double()) if name == "em" else ROUTINGS[name]
    with pytest.raises(ValueError, match="backend 'fused' does not take this problem: it rains; use backend='auto'"):
        routing(randn(1, 3, 2, 4), backend="fused")
    with use_backend("fused"), pytest.raises(ValueError, match="it rains"):
        routing(randn(1, 3, 2, 4))
    assert solved(recorders) == {"fused": 0, "chunked": 0, "reference": 0}


def test_use_backend_holds_inside_its_block_and_yields_to_the_call(recorders):
    votes = randn(1, 3, 2, 4)
    with use_backend("reference"):
        dynamic_routing(votes)
        assert solved(recorders) == {"fused": 0, "chunked": 0, "reference": 1}
        dynamic_routing(votes, backend="chunked")
        assert solved(recorders) == {"fused": 0, "chunked": 1, "reference": 1}
        with use_backend("chunked"):
            dynamic_routing(votes)
        dynamic_routing(votes)
    dynamic_routing(votes)
    assert solved(recorders) == {"fused": 0, "chunked": 3, "reference": 2}


def test_a_registered_backend_is_asked_in_its_place(monkeypatch):
    monkeypatch.setattr(backends, "_backends", backends._backends)
    first, later = Recorder("it rains"), Recorder()
    first.name, later.name = "mine", "later"
    register_backend(first)
    register_backend(later, before="chunked")
    assert backend_names() == ("mine", "fused", "triton", "later", "chunked", "reference")
    planned = plan(dynamic_routing, randn(1, 3, 2, 4))
    assert (planned.chosen, planned.reasons["mine"]) == ("later", "it rains")
    dynamic_routing(randn(1, 3, 2, 4))
    assert later.solved == ["dynamic"]
    with pytest.raises(ValueError, match="backend 'mine' does not take this problem: it rains"):
        dynamic_routing(randn(1, 3, 2, 4), backend="mine")


def test_a_backend_that_cannot_be_registered():
    for name in ("auto", "chunked"):
        recorder = Recorder()
        recorder.name = name
        with pytest.raises(ValueError, match=f"a backend '{name}' already"):
            register_backend(recorder)
    recorder.name = "mine"
    with pytest.raises(
        ValueError, match="before must be one of 'fused', 'triton', 'chunked', 'reference', got 'chunkd'"
    ):
        register_backend(recorder, before="chunkd")
    assert backend_names() == ("fused", "triton", "chunked", "reference")


def test_use_backend_ends_with_an_error(recorders):
    with pytest.raises(RuntimeError), use_backend("reference"):
        raise RuntimeError
    dynamic_routing(randn(1, 3, 2, 4))
    assert solved(recorders) == {"fused": 0, "chunked": 1, "reference": 0}


def test_use_backend_takes_a_backend_of_ones_own():
    mine = Recorder()
    with use_backend(mine):
        uniform_routing(randn(1, 3, 2, 4))
        kmeans_routing(randn(1, 3, 2, 4))
    assert mine.solved == ["dynamic", "kmeans"]


def test_threads_do_not_disturb_each_other():
    num_threads, rounds = 4, 20
    mine = [Recorder() for _ in range(num_threads)]
    inside = threading.Barrier(num_threads, timeout=30)
    failures = []

    def work(number: int) -> None:
        try:
            for _ in range(rounds):
                with use_backend(mine[number]):
                    inside.wait()  # all are inside their own block now
                    dynamic_routing(torch.ones(1, 2, 2, 2))
                    inside.wait()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [len(recorder.solved) for recorder in mine] == [rounds] * num_threads


def test_blocks_that_end_in_another_order_leave_nothing_behind():
    """A compiler reads one value for all threads; it must not outlive the blocks."""
    torch._dynamo.reset()
    mine, entered, left = Recorder(), threading.Event(), threading.Event()

    def work() -> None:
        with use_backend("reference"):
            entered.set()
            assert left.wait(30)

    thread = threading.Thread(target=work)
    with use_backend(mine):  # the thread's block begins inside this one and ends after it
        thread.start()
        assert entered.wait(30)
    left.set()
    thread.join()
    torch.compile(uniform_routing, fullgraph=True, backend="eager")(torch.ones(1, 2, 2, 2))
    assert mine.solved == []


def test_a_block_in_one_thread_is_not_seen_in_another():
    mine = Recorder()
    with use_backend(mine):
        thread = threading.Thread(target=dynamic_routing, args=(torch.ones(1, 2, 2, 2),))
        thread.start()
        thread.join()
    assert mine.solved == []


def test_explain_says_what_would_run_and_computes_nothing(recorders):
    planned = plan(em_routing, randn(4, 7, 3, 16).float(), torch.ones(4, 7), beta_a=0.0, beta_u=0.0)
    assert planned.algorithm == "em"
    assert planned.chosen == "chunked"
    assert planned.reasons == {"fused": "it rains", "chunked": None, "reference": None}
    assert planned.votes_bytes == 4 * 7 * 3 * 16 * 4
    assert solved(recorders) == {"fused": 0, "chunked": 0, "reference": 0}
    assert str(planned).splitlines() == [
        "em routing runs on 'chunked'; votes, if formed: 0.0 MiB",
        "  fused: it rains",
        "  chunked: can run",
        "  reference: can run",
    ]


def test_explain_counts_the_votes_of_windows():
    votes = conv_case(batch_size=3, spatial=(14, 14), num_types=4, kernel=(3, 3), stride=(2, 2), num_parents=5).votes()
    assert plan(dynamic_routing, votes).votes_bytes == 3 * 6 * 6 * 36 * 5 * 4 * 8


def test_explain_ignores_a_named_backend_and_restores_the_choice(recorders):
    assert plan(dynamic_routing, randn(1, 3, 2, 4), backend="reference").chosen == "chunked"
    dynamic_routing(randn(1, 3, 2, 4))
    assert solved(recorders)["chunked"] == 1


def test_explain_still_checks_the_options():
    with pytest.raises(ValueError, match="num_iterations must be at least 1, got 0"):
        plan(dynamic_routing, randn(1, 3, 2, 4), num_iterations=0)


def test_why_not(recorders):
    assert why_not("fused", dynamic_routing, randn(1, 3, 2, 4)) == "it rains"
    assert why_not("reference", dynamic_routing, randn(1, 3, 2, 4)) is None
    with pytest.raises(ValueError, match="backend must be one of 'fused', 'chunked', 'reference', got 'auto'"):
        why_not("auto", dynamic_routing, randn(1, 3, 2, 4))


def test_reference_and_chunked_take_everything():
    for make in PROBLEMS.values():
        reasons = plan(dynamic_routing, make().votes()).reasons
        assert reasons["reference"] is None
        assert reasons["chunked"] is None


def test_wrong_names():
    with pytest.raises(ValueError, match="backend must be one of 'auto', 'fused', .*got 'fusd'; did you mean 'fused'"):
        dynamic_routing(randn(1, 3, 2, 4), backend="fusd")
    with pytest.raises(ValueError, match="got 'referense'; did you mean 'reference'"), use_backend("referense"):
        pass


# --- compiling and exporting ----------------------------------------------------------------------------------------

COMPILED = {
    "dynamic": partial(dynamic_routing, num_iterations=2),
    "uniform": uniform_routing,
    "kmeans": partial(kmeans_routing, num_iterations=1),
    "entropy": partial(entropy_routing, num_iterations=2),
    "em": partial(em_routing, num_iterations=2, beta_a=0.5, beta_u=-0.3),
}


def problem_function(name: str, kind: str, **options):
    """A function of leaf tensors that describes votes, routes them and returns plain tensors; and the leaves."""
    makers = {
        "plain": lambda: tensor_case((2, 5, 2, 4)),
        "dense": lambda: dense_case(num_children=3, num_parents=2),
        "conv": lambda: conv_case(spatial=(5,), kernel=(3,), stride=(2,)),
    }
    kind, _, competition = kind.partition(" ")
    case = makers[kind]()
    leaves = [leaf.clone() for leaf in case.leaves.values()]
    if kind == "plain":
        leaves.append(torch.rand(2, 5).double())

    def solve(*values):
        if kind == "plain":
            votes, given = values[0], {"activations": values[1]}
            result = COMPILED[name](votes, **(given if name == "em" else {}), **options)
        else:
            votes = case.votes(**dict(zip(case.leaves, values)))
            result = COMPILED[name](votes, competition=competition or "global", **options)
        return result.capsules.poses, result.capsules.activations, result.coupling

    return solve, leaves


HOW = [("plain", "reference"), ("conv", "reference"), ("conv position", "reference"), ("dense", "auto")]
GRAPHS = [(name, *how) for name in COMPILED for how in HOW]


@pytest.mark.parametrize(("name", "kind", "backend"), GRAPHS)
def test_compiles_into_one_graph(name, kind, backend, one_example_chunks):
    torch._dynamo.reset()
    function, leaves = problem_function(name, kind, backend=backend)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    outputs = []
    for solve in (function, compiled):
        inputs = [leaf.clone().requires_grad_() for leaf in leaves]
        poses, activations, coupling = solve(*inputs)
        (poses.sum() + activations.square().sum()).backward()
        outputs.append([poses, activations, coupling, *(leaf.grad for leaf in inputs)])
    for ours, theirs in zip(*outputs):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["plain", "conv"])
@pytest.mark.parametrize("name", COMPILED)
def test_exports_with_a_dynamic_batch(name, kind):
    function, leaves = problem_function(name, kind)
    num_batched = 2  # votes or poses, and activations; the others are weights

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterList(leaves[num_batched:])

        def forward(self, first, activations):
            return function(first, activations, *self.weights)

    batch = torch.export.Dim("batch", min=1, max=64)
    layer = Layer()
    exported = torch.export.export(layer, tuple(leaves[:num_batched]), dynamic_shapes=({0: batch}, {0: batch})).module()
    for batch_size in (1, 3, 7):
        inputs = [torch.randn(batch_size, *leaf.shape[1:]).double().abs() for leaf in leaves[:num_batched]]
        with use_backend("reference"):
            expected = layer(*inputs)
        for ours, theirs in zip(exported(*inputs), expected):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_capsules_flow_through_a_compiled_function():
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def two_layers(votes: Tensor, weight: Tensor) -> Capsules:
        hidden = dynamic_routing(votes, num_iterations=1, backend="reference").capsules
        again = torch.einsum("bik,ijkd->bijd", hidden.poses, weight)
        return dynamic_routing(again, num_iterations=1, backend="reference").capsules

    capsules = two_layers(randn(2, 5, 3, 4), randn(3, 2, 4, 6))
    assert isinstance(capsules, Capsules)
    assert capsules.poses.shape == (2, 2, 6)


def test_a_module_with_a_backend_of_its_own_can_be_explained():
    votes = torch.randn(2, 6, 3, 4)
    assert plan(DynamicRouting(backend="reference"), votes).reasons["reference"] is None
    assert why_not("reference", DynamicRouting(backend="chunked"), votes) is None
