"""The explorer over HTTP: the API of the service, what only the page asks for, and the page."""

from typing import Annotated

from fastapi import Query
from fastapi.responses import Response

from torchcaps.explorer.explorer import Explorer
from torchcaps.explorer.results import ExampleList, Roles, Turned
from torchcaps.service.app import Api, new_app
from torchcaps.service.limits import Limits
from torchcaps.service.pages import add_pages


def create_app(explorer: Explorer, *, limits: Limits | None = None) -> Api:
    """The application: /api/..., /openapi.json, a page about the API at /api, and the explorer's own page at /.

    Args:
        explorer: does the work.
        limits: what is taken from clients.
    """
    app = new_app(explorer, limits=limits)

    @app.get("/api/roles", tags=["page"])
    def roles() -> Roles:
        """Which model does what in the page."""
        return explorer.roles()

    @app.get("/api/examples", response_model=ExampleList, tags=["page"])
    async def examples(model: Annotated[str | None, Query(max_length=100)] = None) -> Response:
        """Examples of test data for a model, always the same."""
        name = explorer.name_of(model)
        return await app.work(lambda: explorer.example_list(name))

    @app.get("/api/turn", response_model=Turned, tags=["page"])
    async def turn(
        toy: Annotated[int, Query(ge=0, lt=1000)], model: Annotated[str | None, Query(max_length=100)] = None
    ) -> Response:
        """A toy of the examples from all sides, and the sides that are read from the poses of its class."""
        name = explorer.name_of(model)
        return await app.work(lambda: explorer.turn(name, toy=toy))

    add_pages(app, "torchcaps.explorer", start="index.html")
    return app
