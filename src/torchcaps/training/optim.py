"""Optimiser, what changes with the step, and moving averages of weights and batch statistics."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from torchcaps import schedules
from torchcaps.models import Model
from torchcaps.nn import BatchNorm2d, CapsuleNorm
from torchcaps.routing import FunctionRouting, find_routing, is_scheduled, routing_names
from torchcaps.training.config import TrainingConfig

BATCH_NORM_MOMENTUM = 0.1
YOUNG_STEPS = round(1 / BATCH_NORM_MOMENTUM)


def make_optimizer(model: Model, config: TrainingConfig) -> torch.optim.Optimizer:
    """AdamW or SGD; biases, norms and routing costs are not decayed, and some parameters have a rate of their own.

    A group's "rate" is what its learning rate is to that of the schedule.
    """
    parts: dict[tuple[float, float], list[nn.Parameter]] = {(config.weight_decay, 1.0): [], (0.0, 1.0): []}
    for name, parameter in model.named_parameters():
        is_vector = parameter.dim() < 2 or name.endswith(("bias", "beta_a", "beta_u"))
        key = (0.0 if is_vector else config.weight_decay, model.learning_rates.get(name, 1.0))
        parts.setdefault(key, []).append(parameter)
    groups = [{"params": part, "weight_decay": decay, "rate": rate} for (decay, rate), part in parts.items()]
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.learning_rate, momentum=0.9, nesterov=True)
    return torch.optim.AdamW(groups, lr=config.learning_rate)


def learning_rate(config: TrainingConfig, step: int, total_steps: int, plateau_factor: float) -> float:
    """Of the step that comes next."""
    top, warmup_steps = config.learning_rate, round(config.warmup * total_steps)
    if config.schedule == "cosine":
        return schedules.cosine(step + 1, total_steps + 1, start=top, warmup_steps=warmup_steps)
    rising = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    if config.schedule == "step":
        return rising * top * 0.1 ** ((step >= total_steps / 2) + (step >= total_steps * 3 / 4))
    return rising * top * (plateau_factor if config.schedule == "plateau" else 1.0)


def set_inverse_temperature(model: Model, value: float) -> None:
    """Give all routings of a model that may have one this T, and let its saved form have it."""
    for module in model.modules():
        if isinstance(module, FunctionRouting) and is_scheduled(module, "inverse_temperature"):
            module.update(inverse_temperature=value)
    name = model.options.get("routing")
    if name in routing_names() and "inverse_temperature" in find_routing(name).scheduled:
        model.options["routing_options"] = (model.options.get("routing_options") or {}) | {"inverse_temperature": value}


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float, step: int) -> None:
    """Move the average towards the model; young averages forget faster, buffers are copied."""
    decay = min(decay, (1 + step) / (10 + step))
    for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
        mine.lerp_(theirs, 1 - decay)
    for mine, theirs in zip(average.buffers(), model.buffers(), strict=True):
        mine.copy_(theirs)


def settle_batch_norm(model: nn.Module) -> None:
    """Let young batch statistics be plain means of the batches so far: a short run does not keep what they began with.

    Without it 4 % of the variance 1 that they start from would be left after 30 steps, too much for dark images.
    """
    for norm in _remembering(model):
        assert norm.num_batches_tracked is not None
        norm.momentum = max(BATCH_NORM_MOMENTUM, 1 / (1 + int(norm.num_batches_tracked)))


def synchronise(model: nn.Module, processes: bool) -> None:
    """Let norms take their statistics over all processes, or over this one alone."""
    for module in model.modules():
        if isinstance(module, CapsuleNorm | BatchNorm2d):
            module.synchronised = processes


def has_capsule_norms(model: nn.Module) -> bool:
    """Whether what the model remembers of batches has to be found anew before it is evaluated.

    Every layer is normalised, so that small lags add up: networks stay at chance in evaluation for hundreds of steps,
    averaged ones for more than a thousand.
    """
    return any(isinstance(norm, CapsuleNorm) for norm in _remembering(model))


@contextmanager
def fresh_statistics(model: nn.Module) -> Iterator[None]:
    """What is put through the model inside the block, and nothing before, is what its norms remember."""
    norms = _remembering(model)
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean
        norm.train()
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()


def _remembering(model: nn.Module) -> list[_BatchNorm | CapsuleNorm]:
    """The norms that remember the statistics of batches, those of frozen parts left out."""
    frozen = {part for each in getattr(model, "frozen_parts", ()) for part in each.modules()}
    return [
        module
        for module in model.modules()
        if module not in frozen
        and isinstance(module, _BatchNorm | CapsuleNorm)
        and getattr(module, "num_batches_tracked", None) is not None
    ]
