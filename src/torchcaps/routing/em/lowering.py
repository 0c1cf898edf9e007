"""EM routing as a member of its family of operators."""

from torchcaps.routing.em.common import KAPPA
from torchcaps.routing.ops.em import EmKernelOptions, EmLowering, EmMapping
from torchcaps.routing.ops.votes import competition_number
from torchcaps.routing.problem import Problem


def kernel_options(problem: Problem) -> EmKernelOptions:
    """From the options of the algorithm."""
    options = problem.options
    return EmKernelOptions(
        mapping=EmMapping[options.activation.upper()].value,
        competition=competition_number(problem),
        sharpness=[value * KAPPA[options.cost_scale] for value in options.lambdas],
        inverse_temperatures=options.inverse_temperatures,
        eps_var=options.eps_var,
        damping=options.damping,
        scale_by_mass=options.cost_scale == "mass",
        detach=options.detach_couplings,
    )


LOWERING = EmLowering(kernel_options)
