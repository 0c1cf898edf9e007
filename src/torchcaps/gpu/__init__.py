"""The kernels of GPUs, in Triton: bodies of the operators for "cuda", which is also what ROCm is to torch.

Nothing here needs Triton before a routing runs.
"""

from torchcaps.gpu.availability import device_type
from torchcaps.gpu.em import TritonEm
from torchcaps.gpu.softmax import TritonSoftmax
from torchcaps.routing.ops.bodies import register_body

register_body("softmax", device_type(), TritonSoftmax())
register_body("em", device_type(), TritonEm())
