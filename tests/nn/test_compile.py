"""Every layer compiles as one graph and exports, with any batch size."""

from itertools import product

import pytest
import torch

from support.layers import KINDS, ROUTINGS, make_children, make_layer, scalar
from torchcaps import nn
from torchcaps.capsules import Capsules
from torchcaps.routing import use_backend

# Every layer and every routing once, without gradients where the graphs are large; all of it is slow.
SOME = [("dense", "kmeans"), ("dense", "entropy"), ("conv1d", "dynamic"), ("conv2d", "em"), ("class", "uniform")]
ALL = list(product(KINDS, ROUTINGS))
REST = [pair for pair in ALL if pair not in SOME]
FEW = {"dynamic": 2, "kmeans": 1, "entropy": 2, "em": 2}  # iterations: graphs grow with them
# Compilers warn about their own use of torch.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def small_layer(kind, routing, **arguments):
    options = {"num_iterations": FEW[routing]} if routing in FEW else {}
    return make_layer(kind, routing, bias=True, options=options, **arguments)


def dynamic_batch(children):
    for part in children:
        torch._dynamo.mark_dynamic(part, 0)
    return children


def assert_compiles(layer, kind, backend="aot_eager", gradients=True):
    compiled, parameters = torch.compile(layer, fullgraph=True, backend=backend), list(layer.parameters())
    for batch_size in (3, 5):
        children = make_children(kind, batch_size=batch_size)
        with torch.set_grad_enabled(gradients):
            expected, capsules = layer(children), compiled(dynamic_batch(children))
        torch.testing.assert_close(capsules, expected, rtol=1e-9, atol=1e-11)
        if gradients:
            given, wanted = (torch.autograd.grad(scalar(each), parameters) for each in (capsules, expected))
            torch.testing.assert_close(given, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("kind", "routing"), SOME)
def test_one_graph_for_any_batch_size(kind, routing):
    assert_compiles(small_layer(kind, routing), kind, gradients=routing == "uniform")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize(("kind", "routing"), ALL)
def test_gradients_of_one_graph_for_any_batch_size(kind, routing, backend):
    with use_backend(backend):
        assert_compiles(small_layer(kind, routing), kind)


@pytest.mark.parametrize("routing", ["uniform", pytest.param("em", marks=pytest.mark.slow)])
def test_one_graph_with_a_mask(routing):
    layer, children = small_layer("conv1d", routing), make_children("conv1d", batch_size=3)
    mask = torch.arange(6) < torch.tensor([[4], [6], [5]])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(children, mask), layer(children, mask), rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "routing"), [("dense", "dynamic"), ("conv2d", "em")])
def test_inductor(kind, routing):
    assert_compiles(small_layer(kind, routing), kind, "inductor")


def test_one_graph_where_the_batch_would_be_cut_into_chunks(one_example_chunks):
    assert_compiles(small_layer("dense", "uniform"), "dense", gradients=False)


def test_a_compiled_layer_follows_the_chosen_backend(one_example_chunks):
    """A graph of one backend is not used for another."""
    layer, children = small_layer("dense", "uniform"), make_children("dense", batch_size=3)
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(layer, fullgraph=True, backend=count)
    for backend in ("reference", "auto", "reference"):
        with use_backend(backend):
            torch.testing.assert_close(compiled(children), layer(children))
    assert len(graphs) == 2


def test_primary_capsules_and_decoders_compile():
    network = torch.nn.Sequential(nn.PrimaryCaps(2, 3, 4, 3), torch.nn.Identity())
    decoder = nn.ConvDecoder(3, 4, (1, 6, 5), channels=2)
    matrix = nn.PrimaryMatrixCaps(2, 3)

    def everything(images):
        capsules = network(images)
        pooled = Capsules(capsules.poses.mean((1, 2)), capsules.activations.mean((1, 2)))
        return decoder(pooled), matrix(images)

    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    for batch_size in (3, 5):
        images = torch.randn(batch_size, 2, 6, 5)
        torch._dynamo.mark_dynamic(images, 0)
        torch.testing.assert_close(compiled(images), everything(images))


def assert_exports(kind, routing):
    layer, batch = small_layer(kind, routing), torch.export.Dim("batch", min=1, max=4096)
    shapes = (Capsules({0: batch}, {0: batch}),)
    program = torch.export.export(layer, (make_children(kind, batch_size=3),), dynamic_shapes=shapes).module()
    for batch_size in (2, 7):
        children = make_children(kind, batch_size=batch_size)
        torch.testing.assert_close(program(children), layer(children), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("kind", "routing"), SOME)
def test_export_with_any_batch_size(kind, routing):
    assert_exports(kind, routing)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "routing"), REST)
def test_export_everywhere(kind, routing):
    assert_exports(kind, routing)


def test_export_with_a_mask_and_any_batch_size():
    layer, batch = small_layer("conv1d", "em"), torch.export.Dim("batch", min=1, max=4096)
    mask = torch.arange(6) < torch.tensor([[4], [6], [5]])
    shapes = (Capsules({0: batch}, {0: batch}), {0: batch})
    program = torch.export.export(layer, (make_children("conv1d", batch_size=3), mask), dynamic_shapes=shapes).module()
    children, mask = make_children("conv1d", batch_size=4), torch.arange(6) < torch.tensor([[4], [3], [6], [2]])
    torch.testing.assert_close(program(children, mask), layer(children, mask), rtol=1e-9, atol=1e-11)
