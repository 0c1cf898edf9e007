"""How one image was routed to the classes, in numbers that a page can draw."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from torchcaps.inspection import class_routing, find_routes, vote_plane
from torchcaps.inspection.routed import routing_name
from torchcaps.models import Model
from torchcaps.routing import FunctionRouting, Routing, create_routing, entry_of, find_routing
from torchcaps.service.refusals import Refusal
from torchcaps.service.requests import RoutingChoice, offered_routings
from torchcaps.service.results import Plane, RoutingUsed, Step, Trace

NUM_SHOWN = 3


def trace(
    name: str,
    model: Model,
    image: Tensor,
    *,
    choice: RoutingChoice | None,
    classes: Sequence[int] | None,
    num_points: int,
) -> Trace:
    """Route an image (C, H, W) to the classes, with the model's own routing or another, and tell what happened.

    Args:
        name: of the model.
        model: a capsule network of images.
        image: after preprocessing.
        choice: of the routing; None for the model's own.
        classes: to place in the plane; None for the most active.
        num_points: children to show there, those with the longest votes.
    """
    try:
        routes = find_routes(model, image, return_trace=choice is None)
        own = routes.class_layer.routing
        routing = own if choice is None else new_routing(own, choice)
        routed = class_routing(routes, None if choice is None else routing)
        grid = routed.image_grid
    except ValueError as error:  # options bound to the number of iterations, or a model of a user's own
        raise Refusal(str(error)) from error
    plane = vote_plane(routed, routed.strongest[:NUM_SHOWN] if classes is None else classes, num_points)
    by_type_STJ, by_place_SHWJ = _summaries(routed.couplings, grid)
    steps = [
        Step(
            activations=routed.activations[step],
            poses=routed.poses[step],
            objective=objective if np.isfinite(objective) else None,
            by_place=by_place_SHWJ[step],
            by_type=by_type_STJ[step],
            point_couplings=plane.couplings[step],
            centres=plane.centres[step],
        )
        for step, objective in enumerate(routed.objectives.tolist())
    ]
    places = np.stack(np.unravel_index(plane.children, grid), axis=1)
    best = routed.strongest[0]
    return Trace(
        model=name,
        routing=describe(routing),
        steps=steps,
        plane=Plane(
            classes=list(plane.classes),
            points=plane.votes,
            places=[tuple(place) for place in places.tolist()],
            variance_shares=plane.shares,
        ),
        best=best,
        label=model.labels[best],
    )


def new_routing(own: Routing, choice: RoutingChoice) -> Routing:
    """The routing that was chosen, with the options and costs of the model's own where it is of the same kind.

    One that learns something has learned nothing on a network of another kind, and takes the options for that: the
    activations of EM are then shares of the mass.
    """
    entry, options = find_routing(choice.algorithm), {}
    if choice.num_iterations is not None:
        if not entry.iterates:
            raise Refusal(f"{entry.name} routing has no iterations; leave num_iterations out")
        if choice.num_iterations < entry.least_iterations:
            least = entry.least_iterations
            raise Refusal(f"{entry.name} routing needs at least {least} iteration, got {choice.num_iterations}")
        options["num_iterations"] = choice.num_iterations
    if isinstance(own, FunctionRouting) and entry_of(own) is entry:
        return own.updated(**options).eval()
    if entry.unlearned is None:
        raise Refusal(
            f"{entry.name} routing learns where children belong, and this network was trained with another; choose "
            f"{', '.join(name for name, other in offered_routings().items() if other.unlearned is not None)}"
        )
    return create_routing(entry.name, **entry.unlearned, **options).eval()


def describe(routing: Routing) -> RoutingUsed:
    """Name and number of iterations of a routing."""
    num_iterations = getattr(routing, "options", {}).get("num_iterations")
    return RoutingUsed(algorithm=routing_name(routing), num_iterations=num_iterations)


def _summaries(couplings_SIJ: np.ndarray, grid: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Mean couplings of each type over places (S, types, J), and of each place over types (S, height, width, J)."""
    couplings_SHWTJ = couplings_SIJ.reshape(len(couplings_SIJ), *grid, -1)
    return couplings_SHWTJ.mean((1, 2)), couplings_SHWTJ.mean(3)
