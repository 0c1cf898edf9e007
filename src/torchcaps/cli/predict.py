"""`torchcaps predict`."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from torchcaps.cli.evaluate import columns_of, run_config

if TYPE_CHECKING:
    from rich.text import Text

    from torchcaps.inspection import Reason
    from torchcaps.predictor import Predictor

STANDARD_INPUT = Path("-")


@dataclass(frozen=True, kw_only=True)
class Predict:
    """The class of each image file, or of each text: one line per image or text with its class and activation.

    Texts come from --text, from files with one text per line, from a column of .csv, .tsv and .jsonl files, or from
    lines on standard input.
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder, a saved model, or the name of a shipped model."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Image files, or files with one text per line, or tables of texts; - is standard input, for texts."""

    text: tuple[str, ...] = ()
    """Texts."""

    text_column: str | None = None
    """Column of a table that holds the texts; None is that of the run, or one with a common name."""

    header: bool = True
    """The first line of .csv and .tsv files names the columns; without a header they are called 1, 2, ..."""

    explain: bool = False
    """Show what each word says for the class (green) or against it (red); as numbers where there are no colours."""

    json: bool = False
    """Print one JSON object per image or text, with the score of every class."""

    def run(self) -> None:
        """Print the answers."""
        from torchcaps.predictor import load

        predictor = load(self.run_folder)
        answers = {"image": self.predict_images, "text": self.predict_texts, "user": self.refer}
        answers[predictor.kind](predictor)

    def refer(self, predictor: "Predictor") -> None:
        """Say which command is for recommenders."""
        raise ValueError(f"{self.run_folder} recommends items to people; use torchcaps recommend {self.run_folder}")

    def predict_images(self, predictor: "Predictor") -> None:
        """Print the class of each image file."""
        from torchcaps.data import read_image

        if self.text or self.explain:
            raise ValueError(f"--text and --explain are for models of texts; {self.run_folder} takes images")
        if not self.files:
            raise ValueError("no image files were given: torchcaps predict RUN FILE...")
        for path in self.files:
            self.answer(predictor, {"file": str(path)}, read_image(path)[None])

    def predict_texts(self, predictor: "Predictor") -> None:
        """Print the class of each text."""
        from rich.console import Console

        from torchcaps.cli.notices import notices

        console = Console()
        with notices(Console(stderr=True)):
            for text in self.texts():
                best = self.answer(predictor, {"text": text}, [text])
                if self.explain and not self.json:
                    reasons = predictor.explain([text], [best])[0]
                    plain = "  " + " ".join(f"{word}({value:+.2f})" for word, value in reasons)
                    console.print(coloured(reasons) if console.color_system else plain, soft_wrap=True, highlight=False)

    def texts(self) -> Iterator[str]:
        """From the options, the files, or standard input."""
        from torchcaps.data.text.decode import decode, read_text
        from torchcaps.data.text.tables import Columns, is_table, read_column

        yield from self.text
        columns = columns_of(run_config(self.run_folder), Columns(text_column=self.text_column, header=self.header))
        for path in self.files if self.files or self.text else (STANDARD_INPUT,):
            if path == STANDARD_INPUT:
                for line in sys.stdin.buffer:
                    yield decode(line, "a line of standard input").rstrip("\n")
            else:
                yield from read_column(path, columns) if is_table(path) else read_text(path).rstrip("\n").split("\n")

    def answer(self, predictor: "Predictor", named: dict[str, str], inputs) -> int:
        """Print the answer for one image or text; its most probable class."""
        model, output = predictor.model, predictor.run(inputs)
        probabilities = model.task.estimate(output)
        scores = (output.scores if model.gives_activations else probabilities)[0]
        best = int(scores.argmax())
        labels = model.task.names(model.task.decide(probabilities.float().cpu().numpy())[0], predictor.labels)
        label = " ".join(labels)
        if self.json:
            rounded = (round(score, 6) for score in scores.tolist())
            result: dict[str, Any] = {
                **named,
                "class": label,
                "classes": labels,
                "scores": dict(zip(predictor.labels, rounded, strict=True)),
            }
            if self.explain:
                reasons = predictor.explain(inputs, [best])[0]
                result["reasons"] = [[word, round(value, 6)] for word, value in reasons]
            print(json.dumps(result, ensure_ascii=False))
        else:
            shown = " ".join(next(iter(named.values())).split())
            print(f"{shown}\t{label}\t{scores[best]:.4f}")
        return best


def coloured(reasons: "list[Reason]") -> "Text":
    """Words on a background that tells what they say: green for the class, red against it."""
    from rich.text import Text

    largest = max((abs(reason.value) for reason in reasons), default=0.0) or 1.0
    line = Text("  ")
    for word, value in reasons:
        strength = round(155 * abs(value) / largest)
        style = f"black on rgb({255 - strength},255,{255 - strength})" if value > 0 else ""
        if value < 0:
            style = f"black on rgb(255,{255 - strength},{255 - strength})"
        line.append(word, style=style)
        line.append(" ")
    return line
