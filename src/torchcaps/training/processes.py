"""Which of several processes this one is."""

import torch
from accelerate import PartialState


def processes() -> PartialState:
    """The state of all processes, set up by torchrun or `accelerate launch`, or this one alone.

    Without an accelerator the processes talk over gloo, for which accelerate wants to be told that it is on the CPU.
    """
    return PartialState(cpu=not torch.accelerator.is_available())
