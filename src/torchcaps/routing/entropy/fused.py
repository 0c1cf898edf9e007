"""Entropy-regularised routing on the fused kernels."""

from torchcaps.routing.softmax_kernel import SoftmaxAlgorithm, SoftmaxKernel, SoftmaxOptions


def softmax_options(options) -> SoftmaxOptions:
    """Every iteration is a weighted sum with an alpha of its own."""
    return SoftmaxOptions(algorithm=SoftmaxAlgorithm.ENTROPY.value, num_sums=len(options.alpha), alphas=options.alpha)


FUSED = SoftmaxKernel(softmax_options)
