"""Dense, convolutional and class layers: their weights, brought to the form that `LinearVotes` has for all."""

import math
from math import prod

import torch
from torch import Tensor

from torchcaps.capsules import Capsules, check_capsules, matrix_side
from torchcaps.checks import check_choice, check_floating, check_mask, check_shape
from torchcaps.precision import solved_type
from torchcaps.votes.linear import LinearVotes
from torchcaps.votes.sharing import SHARINGS, takes_old_name
from torchcaps.windows import Windows, border_of, per_axis

POSES = ("vector", "matrix")

Weight = Tensor | tuple[Tensor, Tensor]


class DenseVotes(LinearVotes):
    """Every child votes for every parent.

    Args:
        children: Capsules with poses (B, I, K) and activations (B, I), or the poses alone.
        weight: full (I, J, K, D), shared (J, K, D), factorised the pair ((I, K, K'), (J, K', D)); matrix poses
            (I, J, P, P), (J, P, P), ((I, P, P), (J, P, P)).
        pose: "vector" (W u) or "matrix" (M W, a pose is P * P entries).
        sharing: who owns a transformation: "full", "shared" or "factorised".
        bias: one D-vector per W: full (I, J, D), otherwise (J, D).
        mask: (B, I), False = padding.
        parent_mask: (B, J), False = the example has no such parent: it takes no part in the competition.

    Example:
        >>> poses, weight = torch.randn(2, 6, 8), torch.randn(6, 3, 8, 16)
        >>> DenseVotes(poses, weight).materialise().shape
        torch.Size([2, 6, 3, 16])
    """

    @takes_old_name
    def __init__(
        self,
        children: Capsules | Tensor,
        weight: Weight,
        *,
        pose: str = "vector",
        sharing: str = "full",
        bias: Tensor | None = None,
        mask: Tensor | None = None,
        parent_mask: Tensor | None = None,
    ) -> None:
        poses, activations = check_capsules(children, num_axes=3)
        super().__init__(
            poses,
            **_transformation(weight, bias, pose, sharing, poses.shape[-1], (poses.shape[1],), "I, "),
            activations=activations,
            mask=mask,
            parent_mask=parent_mask,
        )


class ConvVotes(LinearVotes):
    """Every child votes for the parents whose window it lies in, in one or two dimensions.

    Padding is a border of children that have no votes: windows at the edge have fewer children, and nothing else is
    different there. The children that kernels and couplings count are those of the map with its border.

    Args:
        children: feature map of Capsules, poses (B, H, W, C, K) or (B, T, C, K), or the poses alone.
        weight: full (kh, kw, C, J, K, D), shared (J, K, D), factorised ((kh, kw, C, K, K'), (J, K', D)); one kernel
            axis less in one dimension, and P x P in place of K x D for matrix poses.
        kernel_size: one number or one per axis; may be left out where the weight shows it.
        stride, dilation: one number or one per axis.
        padding: positions on each side, one number or one per axis, or "same".
        mask: (B, H, W) or (B, H, W, C), False = the child has no votes.
        window_mask: (B, OH, OW), False = the parent position does not exist, so that it takes no part in the
            competition for its children (windows that reach into padding, for example).
        pose, sharing, bias: as in DenseVotes; the bias of full weights is (kh, kw, C, J, D).

    Example:
        >>> votes = ConvVotes(torch.randn(2, 14, 14, 4, 16), torch.randn(3, 3, 4, 5, 4, 4), pose="matrix", stride=2)
        >>> votes.materialise().shape
        torch.Size([2, 6, 6, 36, 5, 16])
    """

    @takes_old_name
    def __init__(
        self,
        children: Capsules | Tensor,
        weight: Weight,
        *,
        kernel_size: int | tuple[int, ...] | None = None,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        pose: str = "vector",
        sharing: str = "full",
        bias: Tensor | None = None,
        mask: Tensor | None = None,
        window_mask: Tensor | None = None,
    ) -> None:
        poses, activations = _feature_map(children)
        axes, num_types = poses.dim() - 3, poses.shape[-2]
        if kernel_size is None and sharing == "shared":
            raise ValueError("shared weights do not show the kernel size; give kernel_size")
        child_factor, parent_factor = _factors(weight, sharing)
        owner = parent_factor if child_factor is None else child_factor
        kernel = tuple(owner.shape[:axes]) if kernel_size is None else per_axis("kernel_size", kernel_size, axes)
        apart = per_axis("dilation", dilation, axes)
        border = border_of(padding, kernel, apart)
        spatial = tuple(size + 2 * edge for size, edge in zip(poses.shape[1:-2], border, strict=True))
        windows = Windows(spatial, num_types, kernel, per_axis("stride", stride, axes), apart, border)
        _check_windows_see(windows)
        mask = _child_mask(mask, poses)
        transformation = _transformation(
            weight, bias, pose, sharing, poses.shape[-1], (*kernel, num_types), "kernel..., C, "
        )
        if any(border):
            shape = poses.shape[:-1]
            mask = poses.new_ones(shape, dtype=torch.bool) if mask is None else mask.view(shape)
            poses, mask = _bordered(poses, border, 2), _bordered(mask, border, 1).flatten(1)
            activations = None if activations is None else _bordered(activations, border, 1)
        super().__init__(
            poses.flatten(1, -2),
            **transformation,
            activations=None if activations is None else activations.flatten(1),
            mask=mask,
            windows=windows,
            window_mask=window_mask,
        )


class ClassVotes(LinearVotes):
    """All children of a feature map vote for all parents; the children of one type share their transformation.

    Coordinate addition puts ((row + 0.5) / H, (column + 0.5) / W) of the child into its vote: entries (0, P-1) and
    (1, P-1) of a matrix pose (flat 3 and 7 for 4 x 4), entries 0 and 1 of a vector pose.

    Args:
        children: feature map of Capsules, poses (B, H, W, C, K) or (B, T, C, K), or the poses alone.
        weight: full (C, J, K, D), shared (J, K, D), factorised ((C, K, K'), (J, K', D)).
        coordinates: add the coordinates, times this number if it is one.
        mask: (B, H, W) or (B, H, W, C), False = the child has no votes.
        pose, sharing, bias: as in DenseVotes.

    Example:
        >>> ClassVotes(torch.randn(2, 4, 4, 8, 16), torch.randn(8, 5, 4, 4), pose="matrix").materialise().shape
        torch.Size([2, 128, 5, 16])
    """

    @takes_old_name
    def __init__(
        self,
        children: Capsules | Tensor,
        weight: Weight,
        *,
        coordinates: bool | float = True,
        pose: str = "vector",
        sharing: str = "full",
        bias: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        poses, activations = _feature_map(children)
        spatial, num_types = tuple(poses.shape[1:-2]), poses.shape[-2]
        transformation = _transformation(weight, bias, pose, sharing, poses.shape[-1], (num_types,), "C, ")
        if check_coordinates(coordinates):
            rows, row_size = transformation["rows"], transformation["weight"].shape[-1]
            entries = [row_size - 1, 2 * row_size - 1] if pose == "matrix" else [0, 1]
            offset = float(coordinates) * _coordinates(spatial, rows * row_size, entries, like=poses)
            transformation["offset"] = offset.repeat_interleave(num_types, dim=0)
        super().__init__(
            poses.flatten(1, -2),
            **transformation,
            activations=None if activations is None else activations.flatten(1),
            mask=_child_mask(mask, poses),
        )


def check_coordinates(coordinates: object) -> bool | float:
    """Return what is added of a child's place to its vote, if it is one of the things that may be."""
    if not isinstance(coordinates, (bool, int, float)) or not math.isfinite(coordinates):
        raise ValueError(f"coordinates must be True, False or a finite scale, got {coordinates!r}")
    return coordinates


def _feature_map(children: Capsules | Tensor) -> tuple[Tensor, Tensor | None]:
    poses, activations = check_capsules(children)
    if poses.dim() not in (4, 5):
        raise ValueError(
            f"a feature map of poses must have shape (B, H, W, C, K) or (B, T, C, K), got {tuple(poses.shape)}"
        )
    return poses, activations


def _bordered(values: Tensor, border: tuple[int, ...], trailing: int) -> Tensor:
    """A map (B, *spatial, ...) with `trailing` axes after its positions, and a border of zeros around it."""
    sides = [side for edge in reversed(border) for side in (edge, edge)]
    return torch.nn.functional.pad(values, [0, 0] * trailing + sides)


def _check_windows_see(windows: Windows) -> None:
    """Raise if a window lies in the padding with all its places: holes of a dilated one may be larger than a map."""
    for size, kernel, stride, step, border, num in zip(
        *(windows.spatial, windows.kernel, windows.stride, windows.dilation, windows.border, windows.output),
        strict=True,
    ):
        places = ((start * stride + step * place for place in range(kernel)) for start in range(num))
        if border and not all(any(border <= place < size - border for place in window) for window in places):
            raise ValueError(
                f"with padding {windows.border} and dilation {windows.dilation} a window of {windows.kernel} sees "
                f"nothing of a map of {tuple(n - 2 * e for n, e in zip(windows.spatial, windows.border))}; "
                "use less padding, less dilation or a larger input"
            )


def _child_mask(mask: Tensor | None, poses: Tensor) -> Tensor | None:
    """A mask of positions or of children of a feature map, as (B, I)."""
    if mask is None:
        return None
    check_mask("mask", mask)
    if mask.shape == poses.shape[:-2]:
        mask = mask.unsqueeze(-1).expand(poses.shape[:-1])
    return check_shape("mask", mask, tuple(poses.shape[:-1]), "of positions or of children").flatten(1)


def _factors(weight: Weight, sharing: str) -> tuple[Tensor | None, Tensor]:
    """The factor per child, if there is one, and the weight per parent."""
    check_choice("sharing", sharing, SHARINGS)
    child_factor = None
    if sharing == "factorised":
        if not (isinstance(weight, (tuple, list)) and len(weight) == 2):
            raise TypeError("factorised weights are a pair (one factor per child, one per parent)")
        child_factor, weight = weight
        check_floating("child factor", child_factor)
    if not isinstance(weight, Tensor):
        raise TypeError(f"{sharing} weights are one tensor, got {type(weight).__name__}")
    return child_factor, check_floating("weight", weight)


def _transformation(
    weight: Weight,
    bias: Tensor | None,
    pose: str,
    sharing: str,
    pose_size: int,
    owners: tuple[int, ...],
    legend: str,
) -> dict:
    """Bring a weight to its canonical form (T, J, K, D / R); `owners` are the axes that full weights start with."""
    check_choice("pose", pose, POSES)
    rows = matrix_side(pose_size) if pose == "matrix" else 1
    inner = pose_size // rows
    child_factor, weight = _factors(weight, sharing)
    if child_factor is not None:
        check_shape("child factor", child_factor, (*owners, inner, child_factor.shape[-1]), f"({legend}K, K')")
        inner, child_factor = child_factor.shape[-1], child_factor.flatten(0, -3)
    if sharing != "full":
        owners, legend = (), ""
    if weight.dim() != len(owners) + 3:
        raise ValueError(f"{sharing} weight must have shape ({legend}J, K, D), got {tuple(weight.shape)}")
    num_parents, outer = weight.shape[-3], weight.shape[-1]
    if num_parents == 0:
        raise ValueError(f"weight must have at least one parent (J), got shape {tuple(weight.shape)}")
    check_shape("weight", weight, (*owners, num_parents, inner, outer), f"({legend}J, K, D)")
    if pose == "matrix" and not rows == inner == outer:
        raise ValueError(f"matrix poses of {pose_size} entries need {rows} x {rows} weights, got {inner} x {outer}")
    if bias is not None:
        check_shape("bias", bias, (*owners, num_parents, rows * outer), f"({legend}J, D)")
    num_transforms = prod(owners)
    return {
        "rows": rows,
        "weight": weight.reshape(num_transforms, num_parents, inner, outer),
        "child_factor": child_factor,
        "bias": None if bias is None else bias.reshape(num_transforms, num_parents, rows * outer),
    }


def _coordinates(spatial: tuple[int, ...], vote_size: int, entries: list[int], *, like: Tensor) -> Tensor:
    """Scaled position of each place of the map, at the given entries of a vote: (positions, D)."""
    if entries[len(spatial) - 1] >= vote_size:
        raise ValueError(f"coordinate addition needs larger votes than {vote_size}; set coordinates=False")
    dtype = solved_type(like)
    offset = like.new_zeros(*spatial, vote_size, dtype=dtype)
    for axis, (size, entry) in enumerate(zip(spatial, entries, strict=False)):
        scaled = (torch.arange(size, device=like.device, dtype=dtype) + 0.5) / size
        offset[..., entry] = scaled.view(*(-1 if a == axis else 1 for a in range(len(spatial)))).expand(spatial)
    return offset.flatten(0, -2)
