"""Trained models for other programs: what can be asked is `Service`, over HTTP `create_app`.

`Serving` is what `torchcaps serve` runs: with batches, health and metrics, and an end that loses no answer. The page of
`torchcaps.explorer` stands on it.

Needs the extra: pip install 'torchcaps[explorer]'.
"""

from torchcaps.service.app import create_app
from torchcaps.service.batching import Batching
from torchcaps.service.catalogue import shipped_models
from torchcaps.service.limits import Limits
from torchcaps.service.refusals import Refusal
from torchcaps.service.requests import RoutingChoice
from torchcaps.service.service import Service
from torchcaps.service.serving import Serving

__all__ = ["Batching", "Limits", "Refusal", "RoutingChoice", "Service", "Serving", "create_app", "shipped_models"]
