"""Normalisation between capsule layers, and batch norm that several processes share."""

from math import prod

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.checks import check_choice, check_count, check_mask, check_positive, check_shape

STATISTICS = ("batch", "example")


class CapsuleNorm(nn.Module):
    """Brings poses and activation logits to zero mean and unit variance, type by type.

    A type has one mean and one variance of its poses, over batch, positions and entries, and one of its logits, over
    batch and positions; activations are the sigmoid of what comes out (Ribeiro, Leontidis, Kollias 2020 normalise after
    every routed layer). With "batch" the statistics of training are remembered for evaluation.

    Args:
        num_types: C.
        statistics: "batch", or "example": each example by itself, in training and evaluation alike.
        pose_affine: learn a scale and a shift of poses per type.
        logit_affine: the same of logits. Classes need it: a plain norm gives every class the same mean, however rare it
            is, and the shift is where its frequency is learned.
        eps: added to variances.
        momentum: weight of a new batch in what is remembered; None for the plain mean of all batches.

    Shapes:
        poses: (B, *positions, C, D). logits: (B, *positions, C). mask: (B, *positions), False = does not exist: counts
        nowhere and becomes 0. The result: Capsules of the same shapes.

    Example:
        >>> norm = CapsuleNorm(8)
        >>> capsules = norm(3 + torch.randn(2, 6, 6, 8, 16), torch.randn(2, 6, 6, 8) - 5)
        >>> bool(capsules.poses.mean().abs() < 1e-3), bool(0.4 < capsules.activations.mean() < 0.6)
        (True, True)
    """

    running: Tensor
    num_batches_tracked: Tensor
    pose_scale: Tensor | None
    pose_shift: Tensor | None
    logit_scale: Tensor | None
    logit_shift: Tensor | None

    def __init__(
        self,
        num_types: int,
        *,
        statistics: str = "batch",
        pose_affine: bool = False,
        logit_affine: bool = False,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_types = check_count("num_types", num_types)
        self.statistics = check_choice("statistics", statistics, STATISTICS)
        self.eps, self.momentum = check_positive("eps", eps), momentum
        self.synchronised = False
        empty = {"device": device, "dtype": dtype}
        for part, is_affine in (("pose", pose_affine), ("logit", logit_affine)):
            for name in ("scale", "shift"):
                parameter = nn.Parameter(torch.empty(num_types, **empty)) if is_affine else None
                self.register_parameter(f"{part}_{name}", parameter)
        if statistics == "batch":
            # mean and variance of poses, mean and variance of logits
            self.register_buffer("running", torch.empty(4, num_types, **empty))
            self.register_buffer("num_batches_tracked", torch.tensor(0, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set scales to 1, shifts to 0, and forget all batches."""
        for scale, shift in self._affine():
            if scale is not None and shift is not None:
                nn.init.ones_(scale)
                nn.init.zeros_(shift)
        self.reset_running_stats()

    def reset_running_stats(self) -> None:
        """Forget all batches."""
        if self.statistics == "batch":
            with torch.no_grad():
                self.running.copy_(torch.tensor([0.0, 1.0, 0.0, 1.0]).unsqueeze(1))
                self.num_batches_tracked.zero_()

    def forward(self, poses: Tensor, logits: Tensor, mask: Tensor | None = None) -> Capsules:
        self._check(poses, logits, mask)
        places = (poses.shape[0], prod(poses.shape[1:-2]))
        parts = [poses.reshape(*places, *poses.shape[-2:]), logits.reshape(*places, self.num_types, 1)]
        rows = None if mask is None else mask.reshape(places)
        if self.statistics == "example":
            normed = [self._over_examples(part, rows) for part in parts]
        elif self.training:
            normed = self._over_batch(parts, rows)
        else:
            normed = [self._standardised(part, *self.running[n : n + 2]) for n, part in zip((0, 2), parts, strict=True)]
        out_poses, out_logits = (
            self._scaled(part, scale, shift).to(poses.dtype)
            for part, (scale, shift) in zip(normed, self._affine(), strict=True)
        )
        capsules = Capsules(out_poses.reshape(poses.shape), out_logits.sigmoid().reshape(logits.shape))
        if mask is None:
            return capsules
        exists = mask.unsqueeze(-1)
        return Capsules(
            torch.where(exists.unsqueeze(-1), capsules.poses, 0.0), torch.where(exists, capsules.activations, 0.0)
        )

    def _affine(self) -> tuple[tuple[Tensor | None, Tensor | None], ...]:
        return (self.pose_scale, self.pose_shift), (self.logit_scale, self.logit_shift)

    def _scaled(self, values_BNCD: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
        if scale is None or shift is None:
            return values_BNCD
        return torch.addcmul(shift.unsqueeze(-1), values_BNCD, scale.unsqueeze(-1))

    def _standardised(self, values_BNCD: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """`mean` and `variance` (C,), or with leading axes."""
        return (values_BNCD - mean.unsqueeze(-1)) * (variance + self.eps).rsqrt().unsqueeze(-1)

    def _over_examples(self, values_BNCD: Tensor, rows_BN: Tensor | None) -> Tensor:
        if rows_BN is None:
            variance, mean = torch.var_mean(values_BNCD, (1, 3), correction=0, keepdim=True)
            return (values_BNCD - mean) * (variance + self.eps).rsqrt()
        weight_BN11 = rows_BN[..., None, None].to(values_BNCD.dtype)
        values_BNCD = torch.where(rows_BN[..., None, None], values_BNCD, 0.0)  # what does not exist may hold anything
        count = (weight_BN11.sum(1, keepdim=True) * values_BNCD.shape[3]).clamp_min(1)
        centred = values_BNCD - values_BNCD.sum((1, 3), keepdim=True) / count
        variance = (weight_BN11 * centred.square()).sum((1, 3), keepdim=True) / count
        return centred * (variance + self.eps).rsqrt()

    def _over_batch(self, parts: list[Tensor], rows_BN: Tensor | None) -> list[Tensor]:
        """Normalise by the statistics of this batch and remember them."""
        normed, found = [], []
        for part_BNCD in parts:
            values_NCD = part_BNCD.flatten(0, 1) if rows_BN is None else part_BNCD[rows_BN]
            if values_NCD.shape[0] * values_NCD.shape[2] == 1 and not self.synchronised:
                # One value has no spread: it is measured by what is remembered, and remembered by its distance.
                mean, variance = self.running[len(found) : len(found) + 2].clone()
                out = self._standardised(values_NCD, mean, variance)
                mean, variance = values_NCD.detach().view(-1), (values_NCD.detach().view(-1) - mean).square()
            else:
                out, mean, variance, _ = batch_standardised(values_NCD, self.eps, self.synchronised)
            if rows_BN is not None:
                out = part_BNCD.new_zeros(part_BNCD.shape).masked_scatter(rows_BN[..., None, None], out)
            normed.append(out.reshape(part_BNCD.shape))
            found += [mean, variance]
        with torch.no_grad():
            self.num_batches_tracked += 1
            weight = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
            moved = torch.stack(found).to(self.running.dtype) - self.running
            # batches differ in their means, too: the variance of all is more than the mean of theirs
            self.running += weight * moved
            self.running[1::2] += weight * (1 - weight) * moved[::2].square()
        return normed

    def _check(self, poses: Tensor, logits: Tensor, mask: Tensor | None) -> None:
        if poses.dim() < 3 or poses.shape[-2] != self.num_types:
            raise ValueError(
                f"poses must have shape (B, *positions, C, D) with C = {self.num_types} types, got {tuple(poses.shape)}"
            )
        check_shape("logits", logits, tuple(poses.shape[:-1]), "that of the poses without the last axis")
        if mask is not None:
            check_shape("mask", check_mask("mask", mask), tuple(poses.shape[:-2]), "(B, *positions)")

    def extra_repr(self) -> str:
        parts = [str(self.num_types), f"statistics={self.statistics!r}"]
        parts += [f"{part}_affine=True" for part in ("pose", "logit") if getattr(self, f"{part}_scale") is not None]
        return ", ".join(parts)


def check_norm(norm: object, num_types: int) -> CapsuleNorm:
    """Return `norm` if it is one of capsules of as many types."""
    if not isinstance(norm, CapsuleNorm) or norm.num_types != num_types:
        raise ValueError(f"norm must be CapsuleNorm({num_types}), one type per parent type, got {norm!r}")
    return norm


class BatchNorm2d(nn.BatchNorm2d):
    """torch's batch norm; where `synchronised`, over the batches of all processes, on CPUs too (torch's is not)."""

    synchronised = False

    def forward(self, input: Tensor) -> Tensor:
        if not (self.training and self.synchronised):
            return super().forward(input)
        rows_NCL = input.flatten(2)
        out, mean, variance, count = batch_standardised(rows_NCL, self.eps, True)
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            with torch.no_grad():
                self.num_batches_tracked += 1
                weight = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
                self.running_mean.lerp_(mean, weight)
                self.running_var.lerp_(variance * count / (count - 1), weight)
        if self.affine:
            out = torch.addcmul(self.bias.unsqueeze(-1), out, self.weight.unsqueeze(-1))
        return out.view_as(input)


def batch_standardised(
    values_NCL: Tensor, eps: float, synchronised: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | int]:
    """Values less their mean, over the root of their variance plus eps, channel by channel.

    Args:
        values_NCL: (N, C, L); a channel's statistics are over N and L.
        eps: added to the variance.
        synchronised: over the values of all processes.

    Returns:
        The values, their mean and variance (C,), which carry no gradient, and the number of values of a channel.
    """
    if synchronised:
        count = _sum_of_processes(values_NCL.new_tensor(values_NCL.shape[0] * values_NCL.shape[2])).clamp_min(1)
        mean = _sum_of_processes(values_NCL.sum((0, 2))) / count
        centred_NCL = values_NCL - mean.unsqueeze(-1)
        variance = _sum_of_processes(centred_NCL.square().sum((0, 2))) / count
        return centred_NCL * (variance + eps).rsqrt().unsqueeze(-1), mean.detach(), variance.detach(), count
    if values_NCL.shape[0] == 0:  # nothing that exists
        nothing = values_NCL.new_zeros(values_NCL.shape[1])
        return values_NCL, nothing, nothing + 1, 0
    out, mean, inverse = torch.native_batch_norm(values_NCL, None, None, None, None, True, 0.0, eps)
    variance = (inverse.detach().square().reciprocal() - eps).clamp_min(0)
    return out, mean.detach(), variance, values_NCL.shape[0] * values_NCL.shape[2]


def _sum_of_processes(tensor: Tensor) -> Tensor:
    return _AllReduce.apply(tensor)  # pyrefly: ignore[bad-return]


class _AllReduce(torch.autograd.Function):
    """The sum over all processes; every process gets back what all of them have to say about it."""

    @staticmethod
    def forward(ctx, tensor: Tensor) -> Tensor:  # pyrefly: ignore[bad-override]
        total = tensor.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:  # pyrefly: ignore[bad-override]
        total = gradient.clone()
        torch.distributed.all_reduce(total)
        return total
