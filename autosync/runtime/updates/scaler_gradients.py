"""What a GradScaler works on where updates are owned or sharded: `parameter.grad` shows the sums
that this rank updates, and what the scaler did to them is taken back."""

import torch

from autosync.runtime.layout.records import Bucket
from autosync.runtime.updates.flat_update import FlatUpdate
from autosync.runtime.updates.row_update import show_rows, take_rows_back


def show_gradients(bucket: Bucket) -> None:
    """Make `parameter.grad` hold the sums that this rank updates, and zero where other ranks do."""
    if bucket.ranges:
        show_rows(bucket)
        return
    owned = bucket.update.span if isinstance(bucket.update, FlatUpdate) else slice(0, 0)
    bucket.buffer[: owned.start].zero_()
    bucket.buffer[owned.stop :].zero_()
    for variable, segment, view in bucket.pieces:
        if variable.view is None:
            if variable.parameter.grad is None:
                variable.parameter.grad = torch.zeros_like(variable.alias)
            variable.parameter.grad[segment.region].copy_(view)


def take_back(bucket: Bucket) -> None:
    """What was done to shown gradients is done to the sums in the buffer."""
    if bucket.ranges:
        take_rows_back(bucket)
        return
    for variable, segment, view in bucket.pieces:
        if variable.view is None and variable.parameter.grad is not None:
            view.copy_(variable.parameter.grad[segment.region])
