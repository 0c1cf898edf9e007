"""Dynamic routing on the fused kernels."""

from torchcaps.routing.softmax_kernel import SoftmaxAlgorithm, SoftmaxKernel, SoftmaxOptions


def softmax_options(options) -> SoftmaxOptions:
    """Every iteration is a weighted sum; the query is the sum of the poses so far."""
    return SoftmaxOptions(
        algorithm=SoftmaxAlgorithm.DYNAMIC.value,
        num_sums=options.num_iterations,
        detach=options.detach_couplings,
        squash_k=options.squash_k,
    )


FUSED = SoftmaxKernel(softmax_options)
