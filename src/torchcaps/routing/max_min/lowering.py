"""Max-min routing among the softmax routings: dynamic routing with other couplings."""

from torchcaps.routing.dynamic.lowering import softmax_options as dynamic_options
from torchcaps.routing.ops.softmax import SoftmaxAlgorithm, SoftmaxLowering, SoftmaxOptions


def softmax_options(options) -> SoftmaxOptions:
    """Those of dynamic routing under another number."""
    return dynamic_options(options)._replace(algorithm=SoftmaxAlgorithm.MAX_MIN.value)


LOWERING = SoftmaxLowering(softmax_options)
