"""`torchcaps models`."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Models:
    """List the models that can be trained, and those that ship trained."""

    def run(self) -> None:
        """Print the lists."""
        from rich.console import Console
        from rich.table import Table

        from torchcaps.models.base import SHIPPED, read_config
        from torchcaps.models.registry import MODELS, create_model

        table = Table("model", "parameters (28 x 28, 10 classes)", "loss", "what it is")
        for name, model_class in sorted(MODELS.items()):
            model = create_model(name, image_shape=(1, 28, 28), num_classes=10)
            num_parameters = sum(parameter.numel() for parameter in model.parameters())
            summary = (model_class.__doc__ or "").splitlines()[0]
            table.add_row(name, f"{num_parameters:,}", model_class.default_loss, summary)
        console = Console()
        console.print(table)
        folders = sorted(SHIPPED.iterdir()) if SHIPPED.is_dir() else []
        for folder in folders:
            console.print(
                f"shipped: {folder.name} ({read_config(folder).get('card', {}).get('data', '')})", soft_wrap=True
            )
