"""Self-routing as a member of the EM family: one M-step from given logits."""

from torchcaps.capsules import Capsules
from torchcaps.routing.ops.em import EmKernelOptions, EmLowering, EmMapping
from torchcaps.routing.ops.votes import competition_number
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult
from torchcaps.routing.steps import LEAST_MASS


def kernel_options(problem: Problem) -> EmKernelOptions:
    """One iteration, whose masses are the activations."""
    return EmKernelOptions(
        mapping=EmMapping.MASS.value,
        competition=competition_number(problem),
        sharpness=(1.0,),
        inverse_temperatures=(1.0,),
    )


class SelfLowering(EmLowering):
    """The kernel finds masses; activations are their shares of what the children of a window have."""

    def run(self, problem: Problem) -> RoutingResult:
        votes, result = problem.votes, super().run(problem)
        poses, mass = result.capsules
        total = votes.slots(votes.child_weights()).sum(-1, keepdim=True)
        result.capsules = Capsules(poses, mass / total.clamp_min(LEAST_MASS))
        return result


LOWERING = SelfLowering(kernel_options, lambda problem: {}, tells=False)
