"""What older versions of torch say in another way, or do not know."""

import torch


def accelerator_here() -> torch.device | None:
    """The kind of accelerator that is here and can be used; a build of torch for GPUs runs where there is none, too."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def is_exporting() -> bool:
    """Whether a model is being exported; before torch 2.7 that is not told from being compiled."""
    asked = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
    return asked()
