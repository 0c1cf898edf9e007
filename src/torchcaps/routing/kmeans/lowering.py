"""K-Means routing as a softmax routing."""

from torchcaps.routing.ops.softmax import SoftmaxAlgorithm, SoftmaxLowering, SoftmaxOptions

ALGORITHMS = {"dot": SoftmaxAlgorithm.KMEANS_DOT, "euclidean": SoftmaxAlgorithm.KMEANS_EUCLIDEAN}


def softmax_options(options) -> SoftmaxOptions:
    """The start is a weighted sum, too: one more than there are iterations."""
    return SoftmaxOptions(
        algorithm=ALGORITHMS[options.metric].value,
        num_sums=options.num_iterations + 1,
        squash_k=options.squash_k,
        inverse_temperatures=(options.inverse_temperature,) * (options.num_iterations + 1),
    )


def why_not_options(options) -> str | None:
    """Assignments of 0 and 1 are left to the other backends."""
    return "its kernel has soft couplings only, hard=True was given" if options.hard else None


LOWERING = SoftmaxLowering(softmax_options, why_not_options)
