"""Which of several processes this one is, on which device it computes, and what it says when another is lost."""

import torch
from accelerate import Accelerator, DistributedType, PartialState

# Every process holds the whole model, so that any of them can write it.
REPLICATED = (
    DistributedType.NO,
    DistributedType.MULTI_CPU,
    DistributedType.MULTI_GPU,
    DistributedType.MULTI_NPU,
    DistributedType.MULTI_XPU,
)


class ProcessLost(ConnectionError):
    """Another process of a run has ended, and the run cannot go on without it."""


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


def check_replicated(accelerator: Accelerator) -> None:
    """Raise if the launcher was told to cut the model into pieces."""
    if accelerator.distributed_type not in REPLICATED:
        raise ValueError(
            f"training keeps the whole model in every process, and the launcher asks for "
            f"{accelerator.distributed_type.value}; launch with distributed_type MULTI_GPU or MULTI_CPU"
        )


def is_loss(error: RuntimeError) -> bool:
    """Whether an error says that another process cannot be reached any more."""
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error)
