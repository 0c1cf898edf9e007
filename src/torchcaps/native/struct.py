"""What kernels read: the ctypes mirrors of ``Votes<T>`` (csrc/votes.h) and of the options."""

import ctypes

from torch import Tensor

__all__ = ["EmOptionsStruct", "SoftmaxOptionsStruct", "VotesStruct", "pointer", "votes_struct"]


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
        *((name, ctypes.c_int32) for name in ("algorithm", "iterations", "leaky", "detach", "amend")),
        *((name, ctypes.c_double) for name in ("squash_k", "inverse_temperature")),
        *((name, ctypes.c_void_p) for name in ("alphas", "partial")),
    ]


class EmOptionsStruct(ctypes.Structure):
    """The mirror of ``EmOptions<T>`` in csrc/em.h: field order and types are part of the interface."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("iterations", "competition", "activation", "scale_by_mass", "detach")),
        *((name, ctypes.c_double) for name in ("variance_epsilon", "damping")),
        *((name, ctypes.c_void_p) for name in ("sharpness", "inverse_temperature", "beta_a", "beta_u")),
    ]


def pointer(tensor: Tensor | None) -> int | None:
    """The address of a contiguous CPU tensor, or ``None`` (null) for no tensor."""
    if tensor is None:
        return None
    assert tensor.device.type == "cpu", "kernels read CPU memory"
    assert tensor.is_contiguous(), "kernels read contiguous memory"
    return tensor.data_ptr()


def votes_struct(
    poses_BIP: Tensor,
    weight_NJKE: Tensor,
    *,
    activations_BI: Tensor | None = None,
    bias_NJD: Tensor | None = None,
    offset_ND: Tensor | None = None,
    child_SN: Tensor | None = None,
    transform_N: Tensor | None = None,
    child_mask_BI: Tensor | None = None,
    window_mask_BS: Tensor | None = None,
    rows: int = 1,
) -> VotesStruct:
    """Describes votes to a kernel. The tensors must outlive the call that reads the struct.

    Args:
        poses_BIP: Child poses, ``rows`` row vectors each.
        weight_NJKE: One block (J, K, D / rows) per transformation.
        activations_BI: Child activations.
        bias_NJD: Added to the votes, one per transformation and parent.
        offset_ND: Added to the votes of a slot for every parent.
        child_SN: int32, the child in each slot of each window; default: one window, slot n holds child n.
        transform_N: int32, the transformation of each slot; default: slot n uses block n.
        child_mask_BI: uint8, 0 for a child without votes.
        window_mask_BS: uint8, 0 for a window that does not exist.
        rows: Rows of a pose: 1 for vectors, P for P x P matrices.
    """
    num_examples, num_children, pose_size = poses_BIP.shape
    num_transforms, num_parents, inner, outer = weight_NJKE.shape
    num_windows, num_slots = (1, num_children) if child_SN is None else child_SN.shape
    assert pose_size == rows * inner, f"poses of {pose_size} entries, weights for {rows} x {inner}"
    return VotesStruct(
        examples=num_examples,
        windows=num_windows,
        slots=num_slots,
        children=num_children,
        parents=num_parents,
        transforms=num_transforms,
        rows=rows,
        inner=inner,
        outer=outer,
        poses=pointer(poses_BIP),
        activations=pointer(activations_BI),
        weight=pointer(weight_NJKE),
        bias=pointer(bias_NJD),
        offset=pointer(offset_ND),
        child=pointer(child_SN),
        transform=pointer(transform_N),
        child_mask=pointer(child_mask_BI),
        window_mask=pointer(window_mask_BS),
    )
