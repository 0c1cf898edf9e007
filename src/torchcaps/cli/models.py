"""`torchcaps models`."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Models:
    """List the models that can be trained, their routings, and the models that ship trained."""

    def run(self) -> None:
        """Print the lists."""
        from rich.console import Console
        from rich.table import Column, Table

        from torchcaps.models.registry import create_model, list_models
        from torchcaps.models.saving import SHIPPED, read_config
        from torchcaps.routing import find_routing, routing_names

        console = Console()
        examples: tuple[tuple[str, str, dict[str, Any]], ...] = (
            ("image", "28 x 28, 10 classes", {"image_shape": (1, 28, 28), "num_classes": 10}),
            ("text", "10,000 words, 2 classes", {"num_tokens": 10_002, "num_classes": 2}),
            ("user", "1,000 items", {"num_classes": 1000}),
        )
        for kind, example, options in examples:
            name_column = Column("model", no_wrap=True)  # it is to be typed
            table = Table(name_column, "parameters", "loss", "what it is", title=f"for {kind}s ({example})")
            for name in list_models(kind):
                try:
                    model = create_model(name, **options)
                except Exception as error:  # a model of somebody else may need other arguments
                    table.add_row(name, "", "", f"{type(error).__name__}: {error}")
                    continue
                num_parameters = sum(parameter.numel() for parameter in model.parameters())
                summary = (type(model).__doc__ or "").splitlines()[0]
                table.add_row(name, f"{num_parameters:,}", model.default_loss, summary)
            console.print(table)
        routings = Table(Column("routing", no_wrap=True), "name", "options", title="routings of capsule models")
        for entry in map(find_routing, routing_names()):
            routings.add_row(entry.name, entry.english, ", ".join(entry.options))
        console.print(routings)
        folders = sorted(SHIPPED.iterdir()) if SHIPPED.is_dir() else []
        for folder in folders:
            console.print(
                f"shipped: {folder.name} ({read_config(folder).get('card', {}).get('data', '')})", soft_wrap=True
            )
