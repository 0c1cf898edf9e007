"""`torchcaps explore` and `torchcaps serve` under mixed load: what they promise holds for as long as it lasts.

Both run as processes of their own and are asked at the same time, by more good clients than they have places for, whose
answers are compared with those of a predictor in this process, and by slow, rude and wrong ones (tools/
hostile_clients.py). Memory, open files and threads of the services are looked at all the while. The promises:

- every answer is right or a refusal with a reason, and no answer is 500;
- nobody waits longer than a minute and a half for an answer or for being sent away;
- open files stay below the usual limit of 1024, threads below 64, and after the load there are as many files as before;
- memory does not grow;
- afterwards all questions are answered rightly, a signal ends the service in order, and its log has no traceback.

    python tools/service_endurance.py --minutes 30 --out results/reliability/service.json

The exit code is 1 if one of them is broken. Latencies are for orientation: clients and services share the machine.
"""

import argparse
import asyncio
import json
import os
import random
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from hostile_clients import LOST, PARTS, PATIENCE, Broken, Call, Kind, Question, Target, good, whole

from torchcaps.data import load_data
from torchcaps.data.showing import even_choice as choose_examples
from torchcaps.environment import environment
from torchcaps.explorer import Explorer
from torchcaps.predictor import Predictor
from torchcaps.service import Limits, shipped_models
from torchcaps.service.images import to_base64
from torchcaps.service.service import answers

COMMANDS = {
    "explore": (("explore", "--no-browser"), signal.SIGINT, (130, 0)),
    "serve": (("serve", "capsnet-small-mnist"), signal.SIGTERM, (0,)),
}
SETS = {
    "capsnet-small-mnist": "digits",
    "cnn-small-mnist": "digits",
    "capsule-a-movie-snippets": "movie-snippets",
    "capsule-a-chinese-reviews": "chinese-reviews",
}
NUM_EXAMPLES = 8
LIMITS = Limits()
MOST_FILES = 1024
MOST_THREADS = 64  # two workers, those that send files, those of torch
MOST_GROWTH = 16 << 20  # bytes of memory in the second half, by the fitted line
LEAST_MINUTES = 10.0  # below, memory still warms up and its slope says nothing
PROBLEMS_KEPT = 20


@dataclass
class Served:
    """A service, what was seen of it, and what went wrong."""

    name: str
    process: subprocess.Popen[str]
    log: IO[str]
    target: Target
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    samples: list[dict[str, float]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def promise(self, holds: bool, sentence: str) -> None:
        """Note what does not hold."""
        if not holds:
            self.broken.append(sentence)

    def look(self, started: float) -> dict[str, float]:
        """Seconds since the start, resident bytes, open files and threads of the process."""
        folder = Path("/proc") / str(self.process.pid)
        return {
            "second": round(time.monotonic() - started, 1),
            "resident_bytes": int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
            "open_files": len(os.listdir(folder / "fd")),
            "threads": len(os.listdir(folder / "task")),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8192) if most > 0 else 8192, most))
    questions = make_questions()
    with ExitStack() as stack:
        services = [stack.enter_context(served(name, questions)) for name in COMMANDS]
        asyncio.run(load(services, arguments.minutes * 60, arguments.seed))
        for service in services:
            end(service)
    for service in services:
        judge(service, arguments.minutes)
    result = {
        "environment": environment(),
        "minutes": arguments.minutes,
        "seed": arguments.seed,
        "clients_of_each_service": {kind.__name__: number for kind, (number, _) in PARTS.items()},
        "services": {service.name: report(service) for service in services},
        "holds": not any(service.broken for service in services),
    }
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    for service in services:
        told = report(service)
        print(f"{service.name}: {told['good_answers']} right answers, {told['memory']}; broken: {service.broken[:5]}")
    return 0 if result["holds"] else 1


def make_questions() -> dict[str, list[Question]]:
    """What each service is asked, with answers of predictors in this process: all models of explore, one of serve."""
    predictors, _ = shipped_models()
    service = Explorer(predictors)
    found: list[Question] = []
    for model, predictor in predictors.items():
        for example in make_inputs(service, model, predictor):
            found += about(service, model, predictor, example)
    served_model = COMMANDS["serve"][0][1].encode()
    return {"explore": found, "serve": [question for question in found if served_model in question.body]}


def make_inputs(service: Explorer, model: str, predictor: Predictor) -> list[Any]:
    """Images or texts for a model: test examples, or what the explorer shows."""
    if model not in SETS:
        return [example.image for example in service.examples(model)[:NUM_EXAMPLES]]
    test = load_data(SETS[model]).test
    assert test is not None
    if predictor.kind == "text":
        return [text for text in test.texts if 20 < len(text) < 160][:NUM_EXAMPLES]
    return [np.asarray(test.images[number]) for number in choose_examples(test, NUM_EXAMPLES)]


def about(service: Explorer, model: str, predictor: Predictor, example: Any) -> list[Question]:
    """Questions about one image or text."""
    is_text = predictor.kind == "text"
    key, sent = ("text", example) if is_text else ("image", to_base64(example))
    given = {key: example}

    def question(path: str, expected: dict[str, Any], **options: Any) -> Question:
        return Question(f"/api/{path}", json.dumps({"model": model, key: sent, **options}).encode(), expected)

    def some(result: Any, *names: str) -> dict[str, Any]:
        return {name: value for name, value in json.loads(result.model_dump_json()).items() if name in names}

    (answer,) = answers(predictor, predictor.run([example] if is_text else example[None]))
    found = [question("predict", some(answer, "scores", "probabilities", "best", "label"))] * 4
    able = service.models().models[list(service.predictors).index(model)].abilities
    if "explain" in able:
        found.append(question("explain", some(service.explain(model, **given), "class_index", "label", "score")))
    if "trace" in able:
        found.append(question("trace", some(service.trace(model, **given), "best", "label", "routing")))
    if "reconstruct" in able:
        shown = service.reconstruct(model, **given)
        found.append(question("reconstruct", some(shown, "pose", "length", "class_index")))
    if "attack" in able:  # what comes of it hangs on signs of tiny gradients
        hit = service.attack(model, **given, attack="fgsm", epsilon=0.1)
        found.append(question("attack", some(hit, "before", "class_index"), attack="fgsm", epsilon=0.1))
    return found


@contextmanager
def served(name: str, questions: dict[str, list[Question]]) -> Iterator[Served]:
    """A service in a process of its own, which is gone in the end."""
    command = [sys.executable, "-m", "torchcaps", *COMMANDS[name][0], "--port", "0"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            line = process.stdout.readline() if process.stdout else ""
            port = re.search(r":(\d+)/", line)
            if port is None:
                raise RuntimeError(f"{name} did not start: {line!r}")
            yield Served(name, process, log, Target(int(port[1]), questions[name]))
        finally:
            process.kill()
            process.wait()


async def load(services: list[Served], seconds: float, seed: int) -> None:
    """All parts are played for so long, both services are watched, and then left in peace until all is let go."""
    started = time.monotonic()
    for service in services:
        await ask_everything(service)  # threads and caches are there before the first look
        service.samples.append(service.look(started))
    stop = time.monotonic() + seconds
    plays = [
        play(service, kind, pause, random.Random(f"{seed} {service.name} {kind.__name__} {number}"), stop)
        for service in services
        for kind, (number_of_clients, pause) in PARTS.items()
        for number in range(number_of_clients)
    ]
    watching = asyncio.create_task(watch(services, started, max(seconds / 360, 0.5)))
    await asyncio.gather(*plays)
    watching.cancel()
    for service in services:
        await wait_for_release(service, started)
        await ask_everything(service)


async def play(service: Served, kind: Kind, pause: float, choose: random.Random, stop: float) -> None:
    """Play a part again and again, and count how it ends."""
    outcomes = service.outcomes.setdefault(kind.__name__, Counter())
    await asyncio.sleep(choose.uniform(0, pause))
    while time.monotonic() < stop:
        try:
            async with asyncio.timeout(None if kind is good else PATIENCE):  # a good one asks ten times
                outcomes[await kind(service.target, choose)] += 1
        except TimeoutError:
            service.broken.append(f"{kind.__name__}: neither answered nor sent away after {PATIENCE:g} seconds")
        except Broken as broken:
            service.broken.append(f"{kind.__name__}: {broken}")
        except (OSError, *LOST) as error:  # where nobody may be cut off
            service.broken.append(f"{kind.__name__}: {error!r}")
        await asyncio.sleep(pause)


async def watch(services: list[Served], started: float, pause: float) -> None:
    """Look at the processes now and then."""
    while True:
        for service in services:
            service.samples.append(service.look(started))
        await asyncio.sleep(pause)


async def wait_for_release(service: Served, started: float) -> None:
    """Until the service has as many open files as before the load."""
    deadline = time.monotonic() + PATIENCE
    while (now := service.look(started))["open_files"] > service.samples[0]["open_files"]:
        if time.monotonic() > deadline:
            before = service.samples[0]["open_files"]
            service.broken.append(f"{now['open_files']} files are open after the load, {before} were before")
            break
        await asyncio.sleep(0.5)
    service.samples.append(now)


async def ask_everything(service: Served) -> None:
    """Every question once, one after the other: all must be answered, and rightly."""
    for question in set(map(id, service.target.questions)):
        chosen = next(other for other in service.target.questions if id(other) == question)
        async with asyncio.timeout(PATIENCE), Call(service.target) as line:
            status, body, _ = await line.ask([whole(chosen)])
            try:
                chosen.check(body)
                service.promise(status == 200, f"{chosen.path}: answered {status}")
            except (Broken, KeyError, ValueError) as error:
                service.broken.append(f"without load: {error!r}")


def end(service: Served) -> None:
    """End the service by a signal, as its keeper would."""
    _, ending, codes = COMMANDS[service.name]
    service.process.send_signal(ending)
    try:
        code = service.process.wait(3 * LIMITS.seconds)
        service.promise(code in codes, f"ended with code {code}")
    except subprocess.TimeoutExpired:
        service.broken.append(f"did not end {3 * LIMITS.seconds:g} seconds after a signal")
    service.log.seek(0)
    log = service.log.read()
    service.promise("Traceback" not in log, f"its log has a traceback: {log[log.find('Traceback') :][:2000]}")


def judge(service: Served, minutes: float) -> None:
    """What can be said when all is over."""
    for kind in PARTS:
        played = service.outcomes[kind.__name__].total()
        service.promise(played > 0, f"{kind.__name__} was never played")
    files = max(sample["open_files"] for sample in service.samples)
    service.promise(files < MOST_FILES, f"{files} files were open")
    threads = max(sample["threads"] for sample in service.samples)
    service.promise(threads <= MOST_THREADS, f"{threads} threads ran")
    if minutes >= LEAST_MINUTES:
        grown = slope(service) * 60 * minutes / 2
        service.promise(grown <= MOST_GROWTH, f"memory grew by {grown / 2**20:.1f} MiB in the second half")


def slope(service: Served) -> float:
    """Bytes per second by which memory grew in the second half of the load: of the fitted line."""
    half = service.samples[1 + len(service.samples) // 2 : -1]
    if len(half) < 2:
        return 0.0
    fitted = statistics.linear_regression(
        [sample["second"] for sample in half], [sample["resident_bytes"] for sample in half]
    )
    return fitted.slope


def report(service: Served) -> dict[str, Any]:
    """What was seen."""
    times = sorted(service.target.seconds)
    last = service.samples[-1]
    return {
        "good_answers": len(times),
        "milliseconds": {
            name: round(1000 * times[int(share * (len(times) - 1))], 1)
            for name, share in (("median", 0.5), ("p99", 0.99), ("longest", 1.0))
            if times
        },
        "outcomes": {kind: dict(sorted(counts.items())) for kind, counts in service.outcomes.items()},
        "memory": {
            "before_bytes": service.samples[0]["resident_bytes"],
            "after_bytes": last["resident_bytes"],
            "largest_bytes": max(sample["resident_bytes"] for sample in service.samples),
            "slope_of_second_half_bytes_per_minute": round(60 * slope(service)),
        },
        "open_files": {
            "before": service.samples[0]["open_files"],
            "most": max(sample["open_files"] for sample in service.samples),
            "after": last["open_files"],
        },
        "most_threads": max(sample["threads"] for sample in service.samples),
        "broken": dict(Counter(sentence[:80] for sentence in service.broken)),
        "first_broken": service.broken[:PROBLEMS_KEPT],
        "samples": service.samples,
    }


if __name__ == "__main__":
    sys.exit(main())
