"""An explorer of trained models: what it can do is `Service`, how it is served over HTTP is `create_app`.

Needs the extra: pip install 'torchcaps[explorer]'.
"""

from torchcaps.explorer.app import create_app
from torchcaps.explorer.catalogue import shipped_models
from torchcaps.explorer.limits import Limits
from torchcaps.explorer.refusals import Refusal
from torchcaps.explorer.requests import RoutingChoice
from torchcaps.explorer.service import Service

__all__ = ["Limits", "Refusal", "RoutingChoice", "Service", "create_app", "shipped_models"]
