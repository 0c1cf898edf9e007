"""How the networks of `natural` stand pictures as they come in the world: the errors of capsules and of pooling."""

from pathlib import Path

from torchcaps.data.corruptions import STRENGTHS, corrupted
from torchcaps.experiments.harness import Experiment, Row, Scale, test_error
from torchcaps.experiments.natural import CLOTHES, PHOTOGRAPHS, head_rows
from torchcaps.predictor import load
from torchcaps.runs import RunConfig, load_run_data


def corrupted_errors(folder: Path) -> dict[str, float]:
    """The test error on clean pictures, and on each kind and strength of corruption."""
    test = load_run_data(RunConfig.read(folder)).test
    assert test is not None
    predictor, errors = load(folder), test_error(folder)
    for kind, strengths in STRENGTHS.items():
        for level, strength in enumerate(strengths, 1):
            answers = predictor.predict(corrupted(test.inputs, kind, strength))
            errors[f"{kind}, strength {level}: error, %"] = 100 * float((answers != test.labels).mean())
    return errors


def rows(scale: Scale, data: str) -> list[Row]:
    """The heads of `natural`, trained as there."""
    clothes = "fashion-mnist" if scale == "full" else data
    return [
        *head_rows(scale, data, PHOTOGRAPHS, corrupted_errors),
        *head_rows(scale, clothes, CLOTHES, corrupted_errors),
    ]


EXPERIMENT = Experiment(
    name="robustness",
    title="capsule heads and pooling on turned, moved, noisy, blurred and flat pictures",
    source="nothing published for these networks",
    data={"quick": "digits", "full": "cifar10"},
    takes={"quick": "a few minutes", "full": "as natural, or with --reuse runs/natural-full the test alone; not timed"},
    rows=rows,
    remark="The networks of `natural` (take them with --reuse); they were trained on pictures that are shifted and "
    "mirrored, never turned, noisy, blurred or flat. Strengths 1 to 3: turned by 15, 30, 45 degrees; moved by a "
    "sixteenth, an eighth, three sixteenths of a side along a diagonal, the edge going on outside; noise of deviation "
    "0.04, 0.08, 0.16; blur of 0.5, 1, 2 pixels of 32; contrast of 0.75, 0.5, 0.25.",
)
