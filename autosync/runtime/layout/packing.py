"""Moves gradients and values between a bucket's buffer and the tensors of the script."""

import torch
from torch import Tensor

from autosync.runtime.layout.records import Bucket, VariableRecord


def pack_zeros(variable: VariableRecord) -> None:
    """A variable that had no gradient in this backward pass counts as zero."""
    if variable.carrier is not None:
        variable.carrier.pack()
        return
    for bucket in variable.buckets:
        for member, _, view in bucket.pieces:
            if member is variable:
                view.zero_()
    if variable.view is not None:
        variable.parameter.grad = variable.target = variable.view
    elif variable.whole:
        variable.parameter.grad = variable.target = torch.zeros_like(variable.alias)


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
