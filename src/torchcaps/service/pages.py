"""Pages and what they load: read once, so that no path of a client ever reaches the file system."""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from fastapi import FastAPI
from fastapi.responses import Response
from starlette.exceptions import HTTPException

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}


def add_pages(app: FastAPI, *packages: str, start: str = "api.html") -> None:
    """Serve the page about the API at /api, a page at /, and under /static/ what they load.

    Args:
        app: gets them.
        packages: whose folders `static` are served, beside that of the service.
        start: the page at /.
    """
    found: dict[str, bytes] = {}
    for package in ("torchcaps.service", *packages):
        found |= _read(files(package) / "static")

    def send(path: str) -> Response:
        if path not in found:
            raise HTTPException(404, "there is no such file")
        return Response(found[path], media_type=TYPES[PurePosixPath(path).suffix])

    app.add_api_route("/api", lambda: send("api.html"), include_in_schema=False)
    app.add_api_route("/static/{path:path}", send, include_in_schema=False)
    app.add_api_route("/", lambda: send(start), include_in_schema=False)


def _read(folder: Traversable, before: str = "") -> dict[str, bytes]:
    """The files of a folder that pages may load, by their paths within it."""
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found |= _read(entry, f"{before}{entry.name}/")
        elif PurePosixPath(entry.name).suffix in TYPES:
            found[before + entry.name] = entry.read_bytes()
    return found
