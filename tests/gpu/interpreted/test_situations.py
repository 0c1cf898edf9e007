"""Every situation of the kernels of the CPU, with the tiles that GPUs get."""

import pytest

from support.gpu_checks import assert_right
from support.situations import SITUATIONS
from torchcaps.gpu import tiles as tile_sizes
from torchcaps.routing import dynamic_routing, em_routing, why_not

pytestmark = pytest.mark.slow
SOFT = {"inverse_temperature": 0.3, "eps_var": 0.05, "beta_a": 0.3, "beta_u": -0.2}
ROUTINGS = {"dynamic": (dynamic_routing, {}), "em": (em_routing, SOFT)}
EXIST = ("plain", "one of", "one child", "one parent", "one entry", "63", "mask", "logits")  # votes that exist already


@pytest.fixture
def tiles():
    """Those of a GPU."""
    assert tile_sizes.ENTRIES == 1024


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("name", [name for name in SITUATIONS if not name.startswith(EXIST)])
def test_every_situation(name, routing):
    case, (function, options) = SITUATIONS[name](), ROUTINGS[routing]
    assert why_not("triton", function, case.votes(), **options, **case.options) is None
    assert_right(function, case, num_iterations=2, **options)
