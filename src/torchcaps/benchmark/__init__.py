"""How fast each backend is: verified first, then timed, every figure a ratio in one process.

cases     what is routed: shapes, routings, and the work they need at least
verify    values and gradients of every backend against the float64 reference
timing    quiet timing on a machine that others use too
memory    peak memory of one call
latency   whole models, one image at a time
neighbour what threads are worth beside a busy process
roofline  what this machine could do, measured
worker    one process: one case under one allocator setting
runner    all of them
report    tables and JSON
"""

from torchcaps.benchmark.runner import run, run_neighbour
from torchcaps.benchmark.verify import MismatchError

__all__ = ["MismatchError", "run", "run_neighbour"]
