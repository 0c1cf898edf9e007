"""The explorer of trained models: a page in the browser that stands on `torchcaps.service`.

`Explorer` is the service with what only the page asks for, `create_app` its API and its page.

Needs the extra: pip install 'torchcaps[explorer]'.
"""

from torchcaps.explorer.app import create_app
from torchcaps.explorer.explorer import Explorer

__all__ = ["Explorer", "create_app"]
