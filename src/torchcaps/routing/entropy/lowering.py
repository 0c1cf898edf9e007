"""Entropy-regularised routing as a softmax routing."""

from torchcaps.routing.ops.softmax import SoftmaxAlgorithm, SoftmaxLowering, SoftmaxOptions


def softmax_options(options) -> SoftmaxOptions:
    """Every iteration is a weighted sum with an alpha of its own."""
    return SoftmaxOptions(algorithm=SoftmaxAlgorithm.ENTROPY.value, num_sums=len(options.alpha), alphas=options.alpha)


LOWERING = SoftmaxLowering(softmax_options)
