"""`torchcaps serve`."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from torchcaps.cli.explore import address_of, allowed_hosts, check_installed


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Serve a trained model over HTTP, for other programs.

    POST /api/predict, /api/explain, /api/trace, /api/reconstruct, /api/attack, to models on a pretrained encoder
    /api/match, and to recommenders /api/recommend and /api/interests; GET /api describes them, /health and /metrics
    (Prometheus) are for those who run the service. SIGTERM finishes what was begun, refuses new work with
    503 and ends. Needs the extra: pip install 'torchcaps[explorer]'.
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(name="RUN", metavar="RUN")]
    """A run folder, a saved model, or the name of a shipped model; requests need not name it, their answers call it by
    its last part."""

    port: Annotated[int, tyro.conf.arg(metavar="N")] = 8765
    """Port to listen on, 0 for any free one."""

    host: str = "127.0.0.1"
    """Address to listen at; any other than the default lets other machines in."""

    batch_size: Annotated[int, tyro.conf.arg(metavar="N")] = 32
    """Most predictions that are computed together; 1 computes each alone."""

    batch_milliseconds: Annotated[float, tyro.conf.arg(metavar="MS")] = 2.0
    """How long the first of a batch waits for others."""

    waiting: Annotated[int, tyro.conf.arg(metavar="N")] = 32
    """Requests that may wait; one more is told to come again (429)."""

    seconds: Annotated[float, tyro.conf.arg(metavar="S")] = 10.0
    """Until a request is answered or told that it takes too long (503)."""

    compile: bool = False
    """Let torch.compile translate the model first, which takes seconds and a C++ compiler: an image that comes alone is
    answered a fifth faster."""

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl+C."""
        check_installed("the service")
        from pathlib import Path

        from torchcaps.checks import check_count, check_positive
        from torchcaps.predictor import load
        from torchcaps.service import Batching, Limits, Service, Serving
        from torchcaps.service.listening import open_socket

        batching = None
        if check_count("--batch-size", self.batch_size) > 1:
            seconds = check_positive("--batch-milliseconds", self.batch_milliseconds) / 1000
            batching = Batching(size=self.batch_size, seconds=seconds)
        limits = Limits(hosts=allowed_hosts(self.host), waiting=self.waiting, seconds=self.seconds)
        with open_socket(self.host, self.port) as listener:
            name = Path(self.run_folder).resolve().name
            service = Service({name: load(self.run_folder)})
            if self.compile:
                service.predictors[name].compile()
            service.warm_up()
            serving = Serving(service, limits=limits, batching=batching)
            address = address_of(self.host, listener.getsockname()[1])

            def announce() -> None:
                path = "recommend" if service.predictors[name].kind == "user" else "predict"
                print(f"{name} is served at {address}/api/{path}, described at {address}/api", flush=True)

            serving.run(listener, announce)
        print("the service has ended", flush=True)
