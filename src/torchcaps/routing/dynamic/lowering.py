"""Dynamic routing as a softmax routing."""

from torchcaps.routing.ops.softmax import SoftmaxAlgorithm, SoftmaxLowering, SoftmaxOptions


def softmax_options(options) -> SoftmaxOptions:
    """Every iteration is a weighted sum; the query is the sum of the poses so far."""
    return SoftmaxOptions(
        algorithm=SoftmaxAlgorithm.DYNAMIC.value,
        num_sums=options.num_iterations,
        detach=options.detach_couplings,
        squash_k=options.squash_k,
    )


LOWERING = SoftmaxLowering(softmax_options)
