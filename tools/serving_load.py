"""Throughput and latency of `torchcaps serve`, predictions in batches against one by one, asked from this process.

Two services of the same model run side by side, each a process of its own, and are asked in turns, so that both meet
the same machine. First their answers are compared; then, for each number of clients, every client asks again as soon
as it has its answer. Batching is worth its place if at the highest number of clients it answers 1.3 times as many.

    python tools/serving_load.py --out results/serving/load.json
"""

import argparse
import asyncio
import json
import re
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from torchcaps.data import load_data
from torchcaps.data.showing import even_choice
from torchcaps.environment import environment
from torchcaps.predictor import load
from torchcaps.service.images import to_base64

HANDLERS = {"batched": (), "one by one": ("--batch-size", "1")}
NEEDED = 1.3
NUM_IMAGES = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="capsnet-small-mnist", help="a run or a shipped model of images")
    parser.add_argument("--data", default="digits", help="whose test images are asked about")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each handler for each number of clients")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a turn")
    parser.add_argument("--serve-options", nargs=argparse.REMAINDER, default=[], help="more options of both services")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    requests = make_requests(arguments.model, arguments.data)
    with ExitStack() as stack:
        ports = {
            name: stack.enter_context(served(arguments.model, [*options, *arguments.serve_options]))
            for name, options in HANDLERS.items()
        }
        worst = check_answers(ports, requests)
        rows = [row for clients in arguments.clients for row in measure(ports, requests, clients, arguments)]
    best = {row["handler"]: row["requests_per_second"] for row in rows if row["clients"] == max(arguments.clients)}
    ratio = best["batched"] / best["one by one"]
    result = {
        "environment": environment(),
        "model": arguments.model,
        "seconds_of_a_turn": arguments.seconds,
        "rounds": arguments.rounds,
        "largest_difference_of_scores": worst,
        "rows": rows,
        "ratio": ratio,
        "needed": NEEDED,
        "batching_is_kept": ratio > NEEDED,
    }
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"batched answers {ratio:.2f} times as many at {max(arguments.clients)} clients ({NEEDED} are needed)")


def make_requests(model: str, data: str) -> list[bytes]:
    """Whole requests for predictions of test images."""
    name = Path(model).resolve().name
    predictor, test = load(model), load_data(data).test
    if test is None or predictor.model.kind != "image":
        raise ValueError("the load needs a model of images and data with a test part")
    requests = []
    for number in even_choice(test, NUM_IMAGES):
        body = json.dumps({"model": name, "image": to_base64(test.images[number])}).encode()
        head = (
            "POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        requests.append(head.encode() + body)
    return requests


@contextmanager
def served(model: str, options: list[str]):
    """A service in a process of its own; gives its port, and ends it as its keeper would."""
    command = [sys.executable, "-m", "torchcaps", "serve", model, "--port", "0", "--waiting", "1024", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline() if process.stdout else ""
        found = re.search(r":(\d+)/api/predict", line)
        if found is None:
            raise RuntimeError(f"the service did not start: {line!r}")
        yield int(found[1])
        process.send_signal(signal.SIGTERM)
        if process.wait(60) != 0:
            raise RuntimeError(f"the service ended with {process.returncode}")


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """The body of the answer, which must be 200."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    body = await reader.readexactly(int(length[1]) if length else 0)
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{head.splitlines()[0]!r}: {body!r}")
    return body


async def load_for(port: int, requests: list[bytes], clients: int, seconds: float) -> tuple[float, list[float]]:
    """Answers per second, and the seconds that each took, of clients that ask as soon as they are answered."""
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (start := time.perf_counter()) < end:
            await ask(reader, writer, requests[number % len(requests)])
            times.append(time.perf_counter() - start)
            number += 1
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    return len(times) / (time.perf_counter() - start), times


def check_answers(ports: dict[str, int], requests: list[bytes]) -> float:
    """The largest difference between the scores of the handlers, the batched one asked by all at once."""

    async def scores(port: int, at_once: int) -> list[list[float]]:
        door = asyncio.Semaphore(at_once)

        async def one(request: bytes) -> list[float]:
            async with door:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                body = await ask(reader, writer, request)
                writer.close()
                return json.loads(body)["scores"]

        return await asyncio.gather(*map(one, requests))

    together = asyncio.run(scores(ports["batched"], len(requests)))
    alone = asyncio.run(scores(ports["one by one"], 1))
    worst = max(abs(a - b) for first, second in zip(together, alone) for a, b in zip(first, second))
    if worst > 1e-5:
        raise RuntimeError(f"the answers of the handlers differ by {worst}")
    return worst


def measure(ports: dict[str, int], requests: list[bytes], clients: int, arguments: argparse.Namespace) -> list[dict]:
    """For each handler the median of its turns, and the latencies of all of them."""
    rates: dict[str, list[float]] = {name: [] for name in ports}
    times: dict[str, list[float]] = {name: [] for name in ports}
    for turn in range(arguments.rounds + 1):  # the first warms up
        for name, port in ports.items():
            rate, seconds = asyncio.run(load_for(port, requests, clients, arguments.seconds if turn else 1.0))
            if turn:
                rates[name].append(rate)
                times[name] += seconds
    rows = []
    for name in ports:
        cuts = statistics.quantiles(times[name], n=100)
        rows.append(
            {
                "handler": name,
                "clients": clients,
                "requests_per_second": statistics.median(rates[name]),
                "turns": rates[name],
                "num_requests": len(times[name]),
                "p50_milliseconds": 1000 * cuts[49],
                "p99_milliseconds": 1000 * cuts[98],
            }
        )
        print(
            f"{clients:4d} clients, {name:10s} {rows[-1]['requests_per_second']:7.1f} requests/s, "
            f"p50 {1000 * cuts[49]:6.1f} ms, p99 {1000 * cuts[98]:6.1f} ms",
            flush=True,
        )
    return rows


if __name__ == "__main__":
    main()
