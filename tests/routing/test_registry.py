"""One entry per routing, from which everything else follows; and how one from elsewhere gets there."""

import inspect

import pytest
import torch

from torchcaps import Capsules, nn
from torchcaps.benchmark.cases import Case
from torchcaps.routing import (
    FunctionRouting,
    Routing,
    create_routing,
    dynamic_routing,
    entry_of,
    find_routing,
    is_scheduled,
    options_of,
    register_routing,
    registry,
    routing_names,
)
from torchcaps.routing.module import PER_CALL

NAMES = routing_names()
BELONG_TO_MODULES = ("shared_betas", "learn")


@pytest.fixture(autouse=True)
def own_entries(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.mark.parametrize("name", NAMES)
def test_module_and_function_agree_in_names_and_defaults(name):
    entry = find_routing(name)
    function = inspect.signature(entry.function).parameters
    module = inspect.signature(entry.module).parameters
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in module.values())
    expected = {key: value.default for key, value in function.items() if key not in (*PER_CALL, *entry.module.learns)}
    assert {key: value.default for key, value in module.items() if key not in BELONG_TO_MODULES} == expected
    assert entry.options == {key: value.default for key, value in module.items()}
    assert entry.module().options == expected


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_is_complete(name):
    entry = find_routing(name)
    assert entry_of(entry.module()) is entry
    assert entry.english
    assert any("\u4e00" <= letter <= "\u9fff" for letter in entry.chinese)
    assert entry.iterates == ("num_iterations" in entry.options)
    assert set(entry.scheduled) <= set(entry.options)
    if entry.unlearned is not None:
        routing = create_routing(name, **entry.unlearned)
        assert routing(
            torch.randn(2, 5, 3, 4), **({"activations": torch.rand(2, 5)} if routing.weighs_children else {})
        )
    if entry.iterates:
        create_routing(name, num_iterations=entry.least_iterations)
        with pytest.raises(ValueError, match=f"num_iterations must be at least {entry.least_iterations}"):
            create_routing(name, num_iterations=entry.least_iterations - 1)


def test_costs_are_those_of_the_formulas():
    costs = {name: find_routing(name).cost(3) for name in ("dynamic", "kmeans", "entropy", "em", "uniform")}
    assert costs == {"dynamic": 10, "kmeans": 14, "entropy": 10, "em": 22, "uniform": 2}


class Mine(FunctionRouting):
    function = staticmethod(dynamic_routing)

    def __init__(self, *, num_iterations: int = 5, squash_k: float = 0.5) -> None:
        super().__init__(**options_of(locals()))


@pytest.fixture
def mine():
    register_routing("mine", english="of my own", scheduled=("squash_k",), cost=lambda num_iterations: 7)(Mine)


@pytest.mark.usefixtures("mine")
def test_a_registered_routing_is_found_everywhere():
    assert "mine" in routing_names()
    routing = nn.create_routing("mine", num_iterations=2)
    assert type(routing) is Mine
    assert repr(routing) == "Mine(num_iterations=2, squash_k=0.5)"
    parents = nn.DenseCaps(4, 3, 2, 2, routing=routing)(Capsules.from_poses(torch.randn(2, 4, 2)))
    assert parents.poses.shape == (2, 3, 2)
    assert find_routing("mine").chinese == "of my own"
    assert find_routing("mine").options == {"num_iterations": 5, "squash_k": 0.5}
    case = Case(name="", layer="dense", batch_size=1, num_children=1, num_parents=1, in_size=1, out_size=1)
    assert case.with_routing("mine").flops() == 2 + 7
    assert is_scheduled(routing, "squash_k")
    assert is_scheduled(type("Derived", (Mine,), {})(), "squash_k")
    assert not is_scheduled(routing, "num_iterations")


@pytest.mark.usefixtures("mine")
def test_a_name_belongs_to_one_routing():
    register_routing("mine")(Mine)  # its file was imported again
    with pytest.raises(ValueError, match="there is a routing 'mine' already, Mine; choose another name"):
        register_routing("mine")(type("Other", (Mine,), {}))
    with pytest.raises(ValueError, match="has no colon"):
        register_routing("my:own")


def test_a_routing_that_nobody_registered():
    class Unknown(Routing):
        pass

    assert entry_of(Unknown()) is None
    with pytest.raises(ValueError, match="routing must be one of .* got 'dynamc'; did you mean 'dynamic'"):
        find_routing("dynamc")


def test_options_change_in_place_and_in_copies():
    routing = nn.EMRouting(num_iterations=2)
    routing.bind(3, 4)
    other = routing.updated(num_iterations=1, inverse_temperature=0.5)
    assert (routing.options["num_iterations"], other.options["num_iterations"]) == (2, 1)
    assert torch.equal(other.beta_u, routing.beta_u)
    routing.update(inverse_temperature=0.25)
    assert routing.options["inverse_temperature"] == 0.25
    with pytest.raises(ValueError, match="inverse_temperature must be a positive finite number"):
        routing.update(inverse_temperature=-1.0)
    assert routing.options["inverse_temperature"] == 0.25
    with pytest.raises(TypeError, match="EMRouting has no option 'temperature'; did you mean 'inverse_temperature'"):
        routing.update(temperature=1.0)
