"""Where in an image the votes for a class come from."""

import numpy as np

from torchcaps.inspection.routed import ClassRouting
from torchcaps.inspection.routes import Routes
from torchcaps.models import ImageModel
from torchcaps.windows import GridWindow


def origin_shares(routed: ClassRouting, chosen: int) -> np.ndarray:
    r"""Per cent of the weighted sum of the votes for a class that come from each place; what opposes it is negative.

    With :math:`s_j = \sum_i c_{ij} w_i \hat u_{ij}` the length :math:`|s_j|` is the sum over children of
    :math:`c_{ij} w_i \langle \hat u_{ij}, s_j / |s_j| \rangle`; here the types of a place are added up.

    Args:
        routed: one image on its way into the classes.
        chosen: number of the class.

    Shapes:
        (height, width) of the children's grid
    """
    weighted_ID = routed.masses[-1, :, chosen, None] * routed.votes[:, chosen]
    total_D = weighted_ID.sum(0)
    parts_I = weighted_ID @ total_D / max(float(total_D @ total_D), 1e-30)
    return 100 * parts_I.reshape(routed.image_grid).sum(-1)


def seen_window(routes: Routes, depth: int | None = None) -> GridWindow:
    """Which part of the image a place of a grid of capsules sees.

    Args:
        routes: one image on its way.
        depth: of the grid: 0 for the first capsules, 1 for those of the first routed layer; None for the children of
            the classes.
    """
    model, results = routes.model, list(routes.results.values())
    if not isinstance(model, ImageModel):
        raise ValueError(f"{model.name} takes {model.kind}s; windows are seen of images")
    window = model.first_window()
    for result in results[: len(results) - 1 if depth is None else depth]:
        windows = None if result.votes is None else result.votes.windows
        if windows is None or len(windows.kernel) != 2:
            raise ValueError(f"{model.name} has capsules below its classes that lie on no grid of an image")
        window = window.through(windows.kernel, windows.stride, windows.border, windows.dilation)
    return window
