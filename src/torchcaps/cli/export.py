"""`torchcaps export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a trained model to a file that runs without torchcaps, any number of inputs at a time.

    The file is run and compared with the model before it counts as written. Names of classes and preprocessing are
    stored inside it as JSON.
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder, a saved model, or the name of a shipped model."""

    format: Literal["onnx", "torch-export", "aoti"] = "onnx"
    """onnx for onnxruntime and others, torch-export for torch.export.load, aoti compiled for this machine."""

    out: Path | None = None
    """The file; by default the name of the run with .onnx or .pt2, here."""

    include_preprocessing: bool = False
    """Take raw uint8 images (batch, height, width, channels) instead of prepared ones."""

    input_size: tuple[int, int] | None = None
    """Height and width of raw images, with --include-preprocessing; by default what preprocessing resizes to."""

    def run(self) -> None:
        """Write the file and say how to use it."""
        from rich.console import Console

        from torchcaps.export import FORMATS, export_model
        from torchcaps.predictor import load

        console = Console()
        path = self.out or Path(Path(self.run_folder).resolve().name + FORMATS[self.format].suffix)
        with Console(stderr=True).status(f"writing {path}"):
            exported = export_model(
                load(self.run_folder).model,
                path,
                format=self.format,
                include_preprocessing=self.include_preprocessing,
                input_size=self.input_size,
            )
        description = exported.description
        shape = ", ".join(map(str, description.input_shape))
        lines = [f"input:         {description.input_name}, {description.input_type} (batch, {shape})"]
        if description.preprocessing is None:
            lines.append("preprocessing: inside the file: give raw images")
        else:
            options = {name: value for name, value in description.preprocessing.items() if value is not None}
            if "vocabulary" in options:
                options["vocabulary"] = f"of {len(options['vocabulary'].split())} words inside the file"
            if "tokenizer" in options:
                options["tokenizer"] = "of the encoder inside the file"
            if "items" in options:
                options["items"] = f"of {len(options['items']):,} names inside the file"
            steps = ", ".join(f"{name} {value}" for name, value in options.items())
            lines.append(f"preprocessing: yours to do: {steps}")
        shape = f", (batch, {len(description.labels)})" if "probabilities" in description.outputs else ""
        lines.append(f"outputs:       {' and '.join(description.outputs)}{shape}")
        lines.append(
            f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB; differs from the model by {exported.difference:.0e}"
        )
        for line in lines:
            console.print(line, highlight=False, soft_wrap=True)
