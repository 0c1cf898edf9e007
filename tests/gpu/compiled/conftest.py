"""Kernels compiled for GPUs that need not be there; a process either compiles or interprets."""

import os
from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"] if os.environ.get("TRITON_INTERPRET") == "1" or not find_spec("triton") else []
