"""What a change of shape must not move: losses of 20 steps of every family of models, answers of all that ship.

`python tests/golden/make.py BACKEND STEPS` computes them in a process of its own, because the instruction set of the
kernels is chosen once per process (TORCHCAPS_ISA). `--record` writes them beside this file.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

FOLDER = Path(__file__).parent
STEPS, BATCH_SIZE = 20, 8
# Backend and instruction set; the portable kernels are read by a compiler that may fuse otherwise on another machine.
WAYS = {
    "reference": ("reference", "portable"),
    "portable": ("auto", "portable"),
    "avx2": ("auto", "avx2"),
    "avx512": ("auto", "avx512"),
}
IMAGE_MODELS = {
    "capsnet-small": {},
    "capsnet-small kmeans": {"routing": "kmeans", "routing_options": {"num_iterations": 2}},
    "capsnet-small entropy": {"routing": "entropy"},
    "capsnet-small em": {"routing": "em"},
    "capsnet-small uniform": {"routing": "uniform"},
    "capsnet-shared": {},
    "cnn-small": {},
    "cnn-baseline": {},
    "no-routing": {},
    "matrix-no-routing": {},
    "matrix-capsnet-small": {},
    "matrix-capsnet-small paper": {"variant": "paper", "routing_options": {"num_iterations": 2}},
    "matrix-capsnet-small mixing": {"routing_options": {"activation": "mixing", "competition": "position"}},
}
TEXT_MODELS = {
    "text-capsule-a": {},
    "text-capsule-a stabilised": {"noise_class": True, "leaky": True, "partial": True, "amend": True},
    "text-capsule-b": {"routing": "kmeans"},
    "text-cnn": {},
    "text-bilstm": {},
    "text-no-routing": {},
}
SENTENCES = (
    "a warm, funny and moving film",
    "dull, lifeless and far too long",
    "房间很干净 服务很好",
    "质量太差 很失望",
)


def compute(backend: str, steps: int) -> dict[str, dict[str, list]]:
    """All figures with one backend."""
    import torch

    from torchcaps.routing import use_backend

    torch.set_num_threads(1)
    with use_backend(backend):
        losses = {name: image_losses(name, options, steps) for name, options in IMAGE_MODELS.items()}
        losses |= {name: text_losses(name, options, steps) for name, options in TEXT_MODELS.items()}
        return {"losses": losses, "answers": shipped_answers()}


def image_losses(name: str, options: dict, steps: int) -> list[float]:
    """Mean losses so far, step by step, of a model of digits."""
    import torch

    from torchcaps.data import load_data
    from torchcaps.models import create_model

    train = load_data("digits").train.subset(range(STEPS * BATCH_SIZE))
    torch.manual_seed(0)
    return losses_of(create_model(name.split()[0], image_shape=(1, 28, 28), num_classes=10, **options), train, steps)


def text_losses(name: str, options: dict, steps: int) -> list[float]:
    """Mean losses so far, step by step, of a model of snippets."""
    import torch

    from torchcaps.data import load_data
    from torchcaps.inputs.texts import TextEncoding
    from torchcaps.models import create_model

    train = load_data("movie-snippets").train.subset(range(STEPS * BATCH_SIZE))
    encoding = TextEncoding.of(train.texts)
    torch.manual_seed(0)
    model = create_model(
        name.split()[0], num_tokens=encoding.num_tokens, num_classes=2, embedding_size=16, word_evidence=True, **options
    )
    model.preprocessing = encoding
    return losses_of(model, train, steps)


def losses_of(model, train, steps: int) -> list[float]:
    from torchcaps.training import TrainingConfig, fit

    losses = []

    def note(event) -> None:
        losses.append(event.loss)
        if len(losses) == steps:
            raise StopIteration

    config = TrainingConfig(epochs=1, batch_size=BATCH_SIZE, seed=3)
    with suppress(StopIteration):
        fit(model, train, None, config, on_event=note)
    return losses


def shipped_answers() -> dict[str, list]:
    """Probabilities of the shipped models for a few pictures and sentences."""
    import numpy as np

    import torchcaps
    from torchcaps.data import load_data
    from torchcaps.data.load import EMBEDDED
    from torchcaps.models.saving import SHIPPED

    with np.load(EMBEDDED / "toys.npz", allow_pickle=False) as file:
        toys = file["images"][::40]
    inputs = {"mnist": load_data("digits").test.images[::100], "toys": toys, "smallnorb": toys}
    names = sorted(folder.name for folder in SHIPPED.iterdir())
    return {
        name: torchcaps.load(name).predict_proba(inputs.get(name.split("-")[-1], list(SENTENCES))).tolist()
        for name in names
    }


def run(way: str, steps: int = STEPS) -> dict[str, dict[str, list]]:
    """The figures of one way, from a process of its own."""
    backend, instruction_set = WAYS[way]
    environment = os.environ | {"TORCHCAPS_ISA": instruction_set, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__)), backend, str(steps)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def machine() -> dict[str, str]:
    """Whose bits these are: other libraries and processors round otherwise."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    flags = next((line for line in lines if line.startswith("flags")), "")
    return {
        "torch": torch.__version__,
        "processor": processor,
        "instructions": torch.backends.cpu.get_cpu_capability() + (" bf16" if "avx512_bf16" in flags else ""),
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        figures = {"machine": machine(), **{way: run(way) for way in WAYS}}
        (FOLDER / "figures.json").write_text(json.dumps(figures, indent=0) + "\n")
    else:
        print(json.dumps(compute(sys.argv[1], int(sys.argv[2]))))
