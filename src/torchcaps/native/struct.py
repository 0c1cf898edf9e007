"""What kernels read: the ctypes mirrors of ``Votes<T>`` (csrc/votes.h) and of the options."""

import ctypes

from torch import Tensor

from torchcaps.routing.ops.votes import KernelVotes

__all__ = ["EmOptionsStruct", "SoftmaxOptionsStruct", "VotesStruct", "pointer", "votes_struct"]


PRIOR = ("prior_alpha", "prior_kappa", "prior_psi", "prior_nu")


class VotesStruct(ctypes.Structure):
    """Field order and types are part of the interface: csrc/votes.h holds the same list."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("examples", "windows", "slots", "children", "parents")),
        *((name, ctypes.c_int64) for name in ("transforms", "rows", "inner", "outer")),
        *((name, ctypes.c_void_p) for name in ("poses", "activations", "weight", "bias", "offset")),
        *((name, ctypes.c_void_p) for name in ("child", "transform", "child_mask", "window_mask")),
    ]


class SoftmaxOptionsStruct(ctypes.Structure):
    """The mirror of ``SoftmaxOptions`` in csrc/softmax_options.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("algorithm", "iterations", "leaky", "detach", "amend", "competition")),
        ("bfloat16", ctypes.c_int32),
        *((name, ctypes.c_double) for name in ("squash_k", "inverse_temperature", "epsilon")),
        *((name, ctypes.c_void_p) for name in ("alphas", "affine", "partial")),
    ]


class EmOptionsStruct(ctypes.Structure):
    """The mirror of ``EmOptions<T>`` in csrc/em.h: field order and types are part of the interface."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("iterations", "competition", "mapping", "scale_by_mass", "detach")),
        ("worth_types", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("variance_epsilon", "damping", *PRIOR)),
        *((name, ctypes.c_void_p) for name in ("sharpness", "inverse_temperature")),
        *((name, ctypes.c_void_p) for name in ("beta_a", "beta_u", "worth", "threshold", "initial_logits")),
    ]


def pointer(tensor: Tensor | None) -> int | None:
    """The address of a contiguous CPU tensor, or ``None`` (null) for no tensor."""
    if tensor is None:
        return None
    assert tensor.device.type == "cpu", "kernels read CPU memory"
    assert tensor.is_contiguous(), "kernels read contiguous memory"
    return tensor.data_ptr()


def votes_struct(votes: KernelVotes) -> VotesStruct:
    """Describes votes to a kernel: it points into their tensors, which must be contiguous and outlive it."""
    num_examples, num_children, pose_size = votes.poses.shape
    num_transforms, num_parents, inner, outer = votes.weight.shape
    assert pose_size == votes.rows * inner, f"poses of {pose_size} entries, weights for {votes.rows} x {inner}"
    return VotesStruct(
        examples=num_examples,
        windows=votes.num_windows,
        slots=votes.num_slots,
        children=num_children,
        parents=num_parents,
        transforms=num_transforms,
        rows=votes.rows,
        inner=inner,
        outer=outer,
        **{name: pointer(value) for name, value in votes._asdict().items() if name != "rows"},
    )
