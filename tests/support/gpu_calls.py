"""Calls whose kernels are compiled for GPUs that need not be there. By hand, with a record of all of them:

PYTHONPATH=tests python -m support.gpu_calls OUT.json TARGET...
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import torch

from torchcaps.capsules import Capsules
from torchcaps.gpu.static import examine, on_paper
from torchcaps.routing import (
    dynamic_routing,
    em_routing,
    entropy_routing,
    heinsen_routing,
    kmeans_routing,
    max_min_routing,
    self_routing,
    vb_routing,
)
from torchcaps.votes import ConvVotes, DenseVotes


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


def dense(routing, sizes, dtype=torch.float32, **options):
    batch_size, num_children, num_parents, inner, outer = sizes
    poses = zeros(batch_size, num_children, inner, dtype=dtype)
    activations = zeros(batch_size, num_children, dtype=dtype)
    weight = zeros(num_children, num_parents, inner, outer, dtype=dtype)
    votes = DenseVotes(Capsules(poses, activations), weight)
    routing(votes, backend="triton", **options).capsules.poses.sum().backward()


def conv(routing, dtype=torch.float32, num_parents=32, **options):
    poses, activations = zeros(8, 14, 14, 32, 16, dtype=dtype), zeros(8, 14, 14, 32, dtype=dtype)
    weight = zeros(3, 3, 32, num_parents, 4, 4, dtype=dtype)
    votes = ConvVotes(Capsules(poses, activations), weight, stride=2, pose="matrix")
    sum(x.sum() for x in routing(votes, backend="triton", **options).capsules).backward()


BETAS = {"beta_a": 0.0, "beta_u": 0.0}
DIGITS = (128, 1152, 10, 8, 16)
# Together they have every kernel, products of tiles and sums of products, and each kind of competition.
REPRESENTATIVE = {
    "dynamic, DigitCaps": lambda: dense(dynamic_routing, DIGITS, num_iterations=2),
    "dynamic, tf32": lambda: rounded("medium", dense, dynamic_routing, DIGITS, num_iterations=2),
    "max-min, matrices, global": lambda: conv(max_min_routing, num_iterations=2, competition="global"),
    "em, matrices, position": lambda: conv(em_routing, num_iterations=2, competition="position", damping=0.1, **BETAS),
    "vb, matrices": lambda: conv(vb_routing, num_iterations=2, **BETAS),
    "heinsen, matrices": lambda: conv(heinsen_routing, num_iterations=2, beta_use=0.0, beta_ignore=zeros(288, 32)),
}
OTHERS = {
    "dynamic, tf32x3": lambda: rounded("high", dense, dynamic_routing, DIGITS, num_iterations=2),
    "dynamic, float64": lambda: dense(dynamic_routing, DIGITS, torch.float64, num_iterations=2),
    "dynamic, bfloat16": lambda: dense(dynamic_routing, DIGITS, torch.bfloat16, num_iterations=2),
    "dynamic, long poses": lambda: dense(dynamic_routing, (64, 32, 10, 130, 32), num_iterations=2),
    "em, matrices": lambda: conv(em_routing, num_iterations=2, **BETAS),
    "em, vectors": lambda: dense(em_routing, DIGITS, num_iterations=2, **BETAS),
    "em, 128 parents": lambda: conv(em_routing, num_parents=128, activation="mixing", **BETAS),
    "self, matrices": lambda: conv(self_routing),
    "entropy, 1024 parents": lambda: dense(entropy_routing, (32, 128, 1024, 8, 16)),
    "kmeans, one of everything, float64": lambda: dense(
        kmeans_routing, (1, 1, 1, 1, 1), torch.float64, metric="euclidean"
    ),
    "dynamic, odd sizes, bfloat16": lambda: dense(dynamic_routing, (3, 63, 5, 17, 7), torch.bfloat16, leaky=True),
}


def rounded(precision, call, *given, **options):
    """A call under torch's setting of how products of float32 are rounded."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    call(*given, **options)
    torch.set_float32_matmul_precision(before)


def main() -> None:
    out, *targets = sys.argv[1:]
    record = {"torch": torch.__version__, "triton": version("triton"), "calls": []}
    for target in targets:
        for call, run in (REPRESENTATIVE | OTHERS).items():
            with on_paper():
                launches = examine(target, run)
            largest = max(launches, key=lambda launch: (launch.spilled, launch.registers))
            found = {"target": target, "call": call, "launches": len(launches), "largest": largest.kernel}
            found |= {
                "registers": largest.registers,
                "spilled": largest.spilled,
                "shared": max(x.shared for x in launches),
            }
            record["calls"].append(found)
            print("|", " | ".join(map(str, found.values())), "|", flush=True)
    Path(out).write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
