"""Which of several processes this one is, on which device it computes, and how it ends: told to, or with another."""

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import torch
from accelerate import Accelerator, DistributedType, PartialState
from accelerate.state import AcceleratorState

from torchcaps.training.config import TrainingConfig
from torchcaps.versions import accelerator_here

# Every process holds the whole model, so that any of them can write it.
REPLICATED = (
    DistributedType.NO,
    DistributedType.MULTI_CPU,
    DistributedType.MULTI_GPU,
    DistributedType.MULTI_NPU,
    DistributedType.MULTI_XPU,
)
SECONDS_TO_SETTLE = 0.5


class ProcessLost(ConnectionError):
    """Another process of a run has ended, and the run cannot go on without it."""

    @classmethod
    def at(cls, step: int, saved_step: int, folder: Path | None) -> "ProcessLost":
        """What to do when it ended at `step`, and the last checkpoint in `folder` is of `saved_step`."""
        lost = f"another process of this run ended at step {step}, and the run cannot go on without it"
        if folder is None or saved_step == 0:
            return cls(f"{lost}; no checkpoint was written yet: start all processes again")
        return cls(
            f"{lost}; the checkpoint of step {saved_step} is whole: "
            f"start all processes again with `torchcaps train --resume {folder}`"
        )


def processes(device: str = "auto") -> PartialState:
    """The state of all processes, set up by torchrun or `accelerate launch`, or this one alone.

    Without an accelerator the processes talk over gloo, for which accelerate wants to be told that it is on the CPU.

    Args:
        device: "cpu", or a kind of accelerator such as "cuda"; "auto" takes the accelerator if there is one.
    """
    found = accelerator_here()
    kinds = ["cpu"] if found is None else ["cpu", found.type]
    if device not in ("auto", *kinds):
        raise ValueError(f"device {device!r} is not here; choose one of auto, {', '.join(kinds)}")
    on_cpu = device == "cpu" or found is None
    is_first_time = not PartialState._shared_state
    if is_first_time:
        join_after_restart()
    state = PartialState(cpu=on_cpu)
    if is_first_time and state.num_processes > 1:
        atexit.register(leave_others)
    if (str(state.device) == "cpu") != on_cpu and state.num_processes == 1:
        PartialState._reset_state()  # an earlier run in this process was on another device
        state = PartialState(cpu=on_cpu)
    return state


def leave_others() -> None:
    """Part from the other processes when the script ends.

    A thread of gloo that frees the last tensors it has sent when Python is already being taken down aborts the whole
    process (Python before 3.14), and torch does not wait for these threads where DDP has used them.
    """
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    time.sleep(SECONDS_TO_SETTLE)


def join_after_restart() -> None:
    """Meet the other processes where those that torchrun started before have left nothing.

    torchrun (of torch 2.13) keeps one store for all its attempts. Processes that are started again find the addresses
    of those that are gone there, and try to reach them; so every attempt gets a part of the store of its own. Agents on
    several machines count their attempts differently: there torchrun has to make a new store for each.
    """
    is_kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not is_kept or os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0":
        return
    if os.environ["GROUP_WORLD_SIZE"] != "1":
        raise ValueError(
            "restarts on several machines need a new store for each attempt: "
            "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment of torchrun on all of them"
        )
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if attempt != "0" and not torch.distributed.is_initialized():
        store = torch.distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        torch.distributed.init_process_group(
            store=torch.distributed.PrefixStore(f"attempt {attempt}", store),
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )


def check_replicated(accelerator: Accelerator) -> None:
    """Raise if the launcher was told to cut the model into pieces."""
    if accelerator.distributed_type not in REPLICATED:
        raise ValueError(
            f"training keeps the whole model in every process, and the launcher asks for "
            f"{accelerator.distributed_type.value}; launch with distributed_type MULTI_GPU or MULTI_CPU"
        )


def new_accelerator(device: str, config: TrainingConfig, folder: Path | None) -> Accelerator:
    """What a run computes with: device, precision, other processes, trackers."""
    on_cpu = str(processes(device).device) == "cpu"
    AcceleratorState._reset_state()  # precision may differ from that of an earlier run in this process
    accelerator = Accelerator(
        cpu=on_cpu, mixed_precision=config.precision, log_with=list(config.trackers) or None, project_dir=folder
    )
    check_replicated(accelerator)
    if config.trackers:
        accelerator.init_trackers("torchcaps")
    return accelerator


def cut(batch_size: int, accumulate: int, accelerator: Accelerator) -> list[slice]:
    """This process's micro-batches of a batch that is shared among all."""
    rank, num_processes = accelerator.process_index, accelerator.num_processes
    start, stop = (batch_size * r // num_processes for r in (rank, rank + 1))
    # as many in every process: norms wait for each other
    num_parts = max(1, min(accumulate, batch_size // num_processes))
    cuts = [start + (stop - start) * part // num_parts for part in range(num_parts + 1)]
    return [slice(first, last) for first, last in pairwise(cuts) if first < last]


def agree(accelerator: Accelerator, *flags: bool) -> list[bool]:
    """Which flags any process has raised: clocks differ and signals reach one, but all must do the same next."""
    if accelerator.num_processes == 1:
        return list(flags)
    raised = torch.tensor(flags, dtype=torch.float32, device=accelerator.device)
    return (accelerator.reduce(raised, "sum") > 0).tolist()


def check_same_step(accelerator: Accelerator, step: int, folder: Path | None) -> None:
    """Raise unless all processes begin at the same step."""
    if accelerator.num_processes == 1:
        return
    steps = accelerator.gather(torch.tensor([step], device=accelerator.device)).tolist()
    if len(set(steps)) > 1:
        raise ValueError(
            f"the processes found checkpoints of different steps in {folder}: {steps}; "
            "the folder of a run must be the same on all machines"
        )


def is_loss(error: RuntimeError) -> bool:
    """Whether an error says that another process cannot be reached any more."""
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and SIGTERM into a question that the loop asks between steps; the second ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    seen = threading.Event()

    def remember(number: int, frame: object) -> None:
        if seen.is_set():
            raise KeyboardInterrupt
        seen.set()

    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    is_lost = False
    try:
        yield seen.is_set
    except ProcessLost:  # the launcher sends SIGTERM to those who are left; they shall tell the reason first
        is_lost = True
        raise
    finally:
        if not is_lost:
            for number, handler in before.items():
                signal.signal(number, handler)
