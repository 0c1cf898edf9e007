"""Heinsen routing as a member of the EM family: another activation."""

import math

from torch import Tensor

from torchcaps.routing.em.common import of_existing
from torchcaps.routing.learned import of_slots
from torchcaps.routing.ops.em import EmKernelOptions, EmLowering, EmMapping
from torchcaps.routing.ops.votes import competition_number
from torchcaps.routing.problem import Problem


def kernel_options(problem: Problem) -> EmKernelOptions:
    """From the options of the algorithm."""
    options = problem.options
    return EmKernelOptions(
        mapping=EmMapping.HEINSEN.value,
        competition=competition_number(problem),
        sharpness=(1.0,) * options.num_iterations,
        inverse_temperatures=(1.0,) * options.num_iterations,
        eps_var=options.eps_var,
        detach=options.detach_couplings,
    )


def used_and_ignored(problem: Problem) -> dict[str, Tensor]:
    """What it is worth to use a child, and the logit of a parent that uses none.

    beta_use a c - beta_ignore a (1 - c) = (beta_use + beta_ignore) a c - beta_ignore a, whose last term is the same in
    every iteration.
    """
    votes, use, ignore = problem.votes, problem.options.beta_use, problem.options.beta_ignore
    data_BSN = votes.slots(votes.child_weights())
    threshold_BSJ = of_existing(-(data_BSN @ of_slots(ignore, votes.num_slots)), votes.window_mask)
    num_types = math.lcm(use.shape[0], ignore.shape[0])
    return {
        "worth": of_slots(use, num_types) + of_slots(ignore, num_types),
        "threshold": threshold_BSJ.reshape(threshold_BSJ.shape[0], -1, votes.num_parents),
    }


LOWERING = EmLowering(kernel_options, used_and_ignored)
