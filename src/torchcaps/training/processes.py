"""Which of several processes this one is, and on which device it computes."""

import torch
from accelerate import PartialState


def processes(device: str = "auto") -> PartialState:
    """The state of all processes, set up by torchrun or `accelerate launch`, or this one alone.

    Without an accelerator the processes talk over gloo, for which accelerate wants to be told that it is on the CPU.

    Args:
        device: "cpu", or a kind of accelerator such as "cuda"; "auto" takes the accelerator if there is one.
    """
    found = torch.accelerator.current_accelerator()
    kinds = ["cpu"] if found is None else ["cpu", found.type]
    if device not in ("auto", *kinds):
        raise ValueError(f"device {device!r} is not here; choose one of auto, {', '.join(kinds)}")
    on_cpu = device == "cpu" or found is None
    state = PartialState(cpu=on_cpu)
    if (str(state.device) == "cpu") != on_cpu and state.num_processes == 1:
        PartialState._reset_state()  # an earlier run in this process was on another device
        state = PartialState(cpu=on_cpu)
    return state
