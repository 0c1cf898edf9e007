"""An explorer of trained models: what it can do is `Service`, how it is served over HTTP is `create_app`.

`Serving` is the same for programs: without the page, with batches, health and metrics.

Needs the extra: pip install 'torchcaps[explorer]'.
"""

from torchcaps.explorer.app import create_app
from torchcaps.explorer.batching import Batching
from torchcaps.explorer.catalogue import shipped_models
from torchcaps.explorer.limits import Limits
from torchcaps.explorer.refusals import Refusal
from torchcaps.explorer.requests import RoutingChoice
from torchcaps.explorer.service import Service
from torchcaps.explorer.serving import Serving

__all__ = ["Batching", "Limits", "Refusal", "RoutingChoice", "Service", "Serving", "create_app", "shipped_models"]
