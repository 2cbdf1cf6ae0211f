"""Moves gradients and values between a bucket's buffer and the tensors of the script."""

import sys

import torch
from torch import Tensor

from autosync.errors import NotSupported
from autosync.runtime.layout.records import Bucket, VariableRecord


def pack_gradients(variables: list[VariableRecord], share: Tensor) -> None:
    """Complete gradients into their buffers, times this rank's share where no message multiplies by
    it. A gradient that is one piece becomes a view of its buffer, so nothing is copied back. Called
    where autograd records nothing.

    share: a scalar in host memory.

    Raises:
        NotSupported: a gradient is not there any more.
    """
    parts: list[tuple[Tensor, Tensor]] = []
    plain: list[tuple[Tensor, Tensor]] = []
    for variable in variables:
        if variable.packer is not None:
            variable.packer.pack()
            continue
        gradient = variable.parameter.grad
        if gradient is None:
            raise _cleared(variable)
        if variable.view is not None:
            on_wire = variable.buckets[0].share_on_wire
            if gradient is not variable.view:
                (plain if on_wire else parts).append((show_view(variable), gradient))
            elif not on_wire:
                parts.append((gradient, gradient))
            continue
        variable.target = gradient
        for region, place, bucket in variable.pieces:
            part = gradient if region is None else gradient[region]
            (plain if bucket.share_on_wire else parts).append((place, part))
    _copy(plain)
    _multiply(parts, share)


def _copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    if pairs:
        places, parts = zip(*pairs, strict=True)
        torch._foreach_copy_(places, parts)


def _multiply(pairs: list[tuple[Tensor, Tensor]], share: Tensor) -> None:
    if pairs and pairs[0][0].is_cuda:  # two kernels for all, not one for each
        _copy(pairs)
        torch._foreach_mul_([place for place, _ in pairs], float(share))
        return
    for place, part in pairs:
        torch.mul(part, share, out=place)


def pack_zeros(variable: VariableRecord) -> None:
    """A variable that had no gradient in this backward pass counts as zero."""
    if variable.packer is not None:
        variable.packer.pack()
        return
    if variable.view is not None:
        show_view(variable)
    elif variable.whole:
        variable.parameter.grad = variable.target = torch.zeros_like(variable.alias)
    for _, place, _ in variable.pieces:
        place.zero_()


def show_view(variable: VariableRecord) -> Tensor:
    """`parameter.grad` becomes the view of its buffer, before this pass writes there. A gradient of
    an earlier pass that the script has cleared, and kept, gets memory of its own."""
    assert variable.view is not None
    if variable.parameter.grad is not variable.view and is_kept(variable):
        variable.view.data = variable.view.clone()
        variable.view = variable.pieces[0][1][...]
    variable.parameter.grad = variable.target = variable.view
    return variable.view


def is_kept(variable: VariableRecord) -> bool:
    """Whether the script holds the view that it had for a gradient. The record refers to it twice,
    and the call once."""
    return variable.target is variable.view and sys.getrefcount(variable.view) > 3


def _cleared(variable: VariableRecord) -> NotSupported:
    return NotSupported(
        f"the gradient of {variable.name!r} was cleared inside of backward(), as a hook does that "
        "updates parameters there: it has not been averaged over the ranks yet.",
        thing=f"variable {variable.name}.grad",
        remedy="Update parameters by optimizer.step() behind backward(); to leave a gradient out, "
        "set it to zero in the hook.",
    )


def hand_back(bucket: Bucket) -> None:
    """Reduced gradients of variables that are no single view of a buffer."""
    for variable, segment, view in bucket.pieces:
        if variable.view is None and variable.target is not None:
            variable.target[segment.region].copy_(view)


def show_targets(bucket: Bucket) -> None:
    """Reduced sparse gradients, which are tensors of their own."""
    for variable in bucket.variables:
        variable.parameter.grad = variable.target


def unpack_values(bucket: Bucket) -> None:
    """New values from the buffer into the parameters."""
    for variable, segment, view in bucket.pieces:
        variable.alias[segment.region].copy_(view)


def whole_gradients(variables: list[VariableRecord]) -> list[Tensor]:
    """Reduced gradients of the whole variables, equal on every rank."""
    found = [v.parameter.grad for v in variables if v.whole and v.parameter.grad is not None]
    return [gradient._values() if gradient.is_sparse else gradient for gradient in found]
