"""Variational Bayes routing as a member of the EM family: another map from sums to Gaussians."""

from torchcaps.routing.ops.em import EmKernelOptions, EmLowering, EmMapping
from torchcaps.routing.ops.votes import competition_number
from torchcaps.routing.problem import Problem


def kernel_options(problem: Problem) -> EmKernelOptions:
    """From the options of the algorithm."""
    options = problem.options
    return EmKernelOptions(
        mapping=EmMapping.VB.value,
        competition=competition_number(problem),
        sharpness=(1.0,) * options.num_iterations,
        inverse_temperatures=(1.0,) * options.num_iterations,
        detach=options.detach_couplings,
        prior=tuple(options.prior),
    )


LOWERING = EmLowering(kernel_options, tells=False)
