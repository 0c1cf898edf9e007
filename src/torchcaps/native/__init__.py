"""The kernels of the CPU: finding and loading the native library, describing votes to it, calling it."""

from torchcaps.native.em import NativeEm
from torchcaps.native.softmax import NativeSoftmax
from torchcaps.routing.ops.bodies import interprets, register_body

if not interprets():
    register_body("softmax", "cpu", NativeSoftmax())
    register_body("em", "cpu", NativeEm())
