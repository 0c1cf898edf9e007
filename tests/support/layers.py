"""Small layers of every kind, children for them, and what the loops say they give."""

import numpy as np
import torch

from support import loops, more_loops
from torchcaps import nn
from torchcaps.capsules import Capsules
from torchcaps.schedules import routing_lambda

ROUTINGS = {
    "dynamic": nn.DynamicRouting,
    "uniform": nn.UniformRouting,
    "kmeans": nn.KMeansRouting,
    "entropy": nn.EntropyRouting,
    "em": nn.EMRouting,
    "vb": nn.VBRouting,
    "heinsen": nn.HeinsenRouting,
    "self": nn.SelfRouting,
    "attention": nn.AttentionRouting,
    "self_attention": nn.SelfAttentionRouting,
    "max_min": nn.MaxMinRouting,
}
# What each learns, beside the weights of the layer.
LEARNED = {
    "em": {"beta_a", "beta_u"},
    "vb": {"beta_a", "beta_u"},
    "heinsen": {"beta_use", "beta_ignore"},
    "self": {"weight", "bias"},
    "attention": {"scale", "shift"},
    "self_attention": {"bias"},
}
POSES = ("vector", "matrix")
SHARINGS = ("full", "shared", "factorised")

# kind -> (class, types or capsules in and out, further arguments, axes of the children)
KINDS = {
    "dense": (nn.DenseCaps, (5, 3), {}, (5,)),
    "conv1d": (nn.ConvCaps1d, (2, 2), {"kernel_size": 3}, (6, 2)),
    "conv2d": (nn.ConvCaps2d, (2, 2), {"kernel_size": (3, 2), "stride": (2, 1)}, (6, 3, 2)),
    "class": (nn.ClassCaps, (2, 3), {}, (2, 3, 2)),
}


def make_layer(kind, routing="dynamic", *, pose="vector", sharing="full", bias=False, options=None, **arguments):
    """A layer in float64 whose parameters are all random, so that none hides behind its start."""
    layer_class, (num_in, num_out), geometry, _ = KINDS[kind]
    in_size, out_size = (3, 5) if pose == "vector" else (4, 4)
    layer = layer_class(
        num_in, num_out, in_size, out_size, routing=ROUTINGS[routing](**(options or {})),
        pose=pose, sharing=sharing, bias=bias, **({"dtype": torch.float64} | geometry | arguments),
    )  # fmt: skip
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            is_small = "beta" in name or name == "bias" or name.startswith("routing.")
            spread = 0.3 * torch.randn_like(parameter) if is_small else None
            parameter.add_(torch.randn_like(parameter) if spread is None else spread)
    return layer


def make_children(kind, *, batch_size=2, pose="vector", dtype=torch.float64):
    """Children for such a layer; vector capsules are as active as they are long."""
    shape = (batch_size, *KINDS[kind][3])
    if pose == "vector":
        return Capsules.from_poses(torch.randn(*shape, 3, dtype=dtype))
    return Capsules(torch.randn(*shape, 4, dtype=dtype), torch.rand(*shape, dtype=dtype))


def scalar(capsules):
    """A number that depends on every entry of the capsules in its own way."""
    return sum(
        (part * torch.linspace(1, 2, part.numel(), dtype=part.dtype).view_as(part)).sin().sum() for part in capsules
    )


def loop_result(layer, kind, children, *, mask=None, window_mask=None, competition=None):
    """The layer's result by the loops: a Step whose arrays have the layer's shapes."""
    parameters = {name: parameter.detach().numpy() for name, parameter in layer.named_parameters()}
    weight = parameters["weight"]
    if layer.sharing == "factorised":
        weight = (parameters["child_weight"], weight)
    if layer.normalise_weights:
        weight = tuple(unit_matrices(part) for part in weight) if isinstance(weight, tuple) else unit_matrices(weight)
    poses, bias = children.poses.detach().numpy(), parameters.get("bias")
    if kind == "dense":
        votes, child = loops.dense_votes(poses, weight, bias, layer.pose, layer.sharing)
        positions = ()
    elif kind == "class":
        votes, child = loops.class_votes(poses, weight, bias, layer.pose, layer.sharing, layer.coordinates)
        positions = ()
    else:
        kernel, stride = layer.kernel_size, layer.stride
        votes, child = loops.conv_votes(poses, weight, kernel, stride, bias, layer.pose, layer.sharing)
        positions = tuple((size - k) // s + 1 for size, k, s in zip(poses.shape[1:-2], kernel, stride))
    name = next(name for name, kind in ROUTINGS.items() if type(layer.routing) is kind)
    learned = {key.removeprefix("routing."): value for key, value in parameters.items() if key.startswith("routing.")}
    field = loops.Field(
        votes,
        child,
        competition=competition or ("global" if name == "em" else "window"),
        mask=None if mask is None else mask.flatten(1).numpy(),
        window_mask=None if window_mask is None else window_mask.flatten(1).numpy(),
        activations=children.activations.detach().flatten(1).numpy(),
        initial_logits=self_logits(poses, child, **learned) if name == "self" else None,
    )
    step, _ = SOLVE[name](field, **learned)
    shape = (len(votes), *positions)
    coupling, poses, activations = (array.reshape(*shape, *array.shape[2:]) for array in step[:3])
    return loops.Step(coupling, poses, activations, step.objective)


def self_logits(poses, child, weight, bias):
    """What children think of parents by their poses: (B, S, N, J); slot n has the numbers of owner n modulo owners."""
    poses = poses.reshape(len(poses), -1, poses.shape[-1])
    logits = np.zeros((len(poses), *child.shape, bias.shape[1]))
    for b, s, n, j in np.ndindex(*logits.shape):
        owner, pose = n % len(weight), poses[b, child[s, n]]
        logits[b, s, n, j] = bias[owner, j] + sum(weight[owner, k, j] * pose[k] for k in range(len(pose)))
    return logits


def per_slot(field, values):
    """Numbers of owners (T, J) for every slot."""
    return np.array([values[n % len(values)] for n in range(field.sizes[2])])


def em_loops(field, beta_a, beta_u):
    lambdas = [routing_lambda(iteration) for iteration in range(3)]
    return loops.em(field, beta_a / (100 * lambdas[-1]), beta_u, lambdas)


SOLVE = {
    "dynamic": loops.dynamic,
    "uniform": lambda field: loops.dynamic(field, num_iterations=1),
    "kmeans": loops.kmeans,
    "entropy": loops.entropy,
    "em": em_loops,
    "vb": more_loops.vb,
    "heinsen": lambda field, **betas: more_loops.heinsen(field, *(per_slot(field, beta) for beta in betas.values())),
    "self": lambda field, **_: more_loops.self_routing(field),
    "attention": more_loops.attention,
    "self_attention": lambda field, bias: more_loops.self_attention(field, per_slot(field, bias)),
    "max_min": more_loops.max_min,
}


def unit_matrices(weight):
    """Every matrix over its Frobenius norm."""
    out = np.zeros_like(weight)
    for place in np.ndindex(*weight.shape[:-2]):
        out[place] = weight[place] / np.sqrt(sum(entry**2 for row in weight[place] for entry in row))
    return out
