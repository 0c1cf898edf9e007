"""`torchcaps explore`."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

import tyro

LOCAL = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, kw_only=True)
class Explore:
    """Explore trained models in the browser: draw, watch routing, move capsules, attack, type texts, pick items.

    Without a run it shows the models that ship with the package. Needs the extra: pip install 'torchcaps[explorer]'.
    """

    run_folder: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(name="RUN", metavar="[RUN]")] = None
    """A run folder, a saved model, or the name of a shipped model to begin with."""

    port: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Port to listen on, 0 for any free one; by default 8765, or a free one if that is taken."""

    host: str = "127.0.0.1"
    """Address to listen at; any other than the default lets other machines in."""

    no_browser: bool = False
    """Do not open the page in the browser."""

    def run(self) -> None:
        """Serve until interrupted."""
        check_installed("the explorer")
        import webbrowser

        from torchcaps.explorer import Explorer, create_app
        from torchcaps.service import Limits, shipped_models
        from torchcaps.service.listening import open_socket, run

        listener = open_socket(self.host, self.port)
        with listener:
            limits = Limits(hosts=allowed_hosts(self.host))
            explorer = Explorer(*shipped_models(self.run_folder))
            explorer.warm_up()
            shown = vars(explorer.roles()).values()
            if self.run_folder is not None and next(iter(explorer.predictors)) not in shown:
                print("note: the page has no place for this model (one of images needs a decoder); the API has it")
            app = create_app(explorer, limits=limits)
            address = f"{address_of(self.host, listener.getsockname()[1])}/"

            def announce() -> None:
                print(f"The explorer is at {address} (Ctrl+C ends it)", flush=True)
                if not self.no_browser:
                    webbrowser.open(address)

            run(app, limits, listener, announce)


def allowed_hosts(host: str) -> tuple[str, ...] | None:
    """What requests may call a service that listens at `host`; None for anything, where other machines are let in."""
    return LOCAL if host in ("127.0.0.1", "localhost", "::1") else None


def address_of(host: str, port: int) -> str:
    """Where a browser on this machine finds a service that listens at `host`."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def check_installed(what: str) -> None:
    """Raise if the packages of the extra are not there."""
    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ValueError(f"{what} needs {' and '.join(missing)}: pip install 'torchcaps[explorer]'")
