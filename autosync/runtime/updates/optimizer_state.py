"""The optimizer's state where updates are owned or sharded: scattered while training, gathered
into the script's optimizer for a checkpoint, in torch's own layout."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from autosync.runtime.layout.records import Bucket, VariableRecord
from autosync.runtime.streams import on_device
from autosync.runtime.updates.row_update import RowUpdate, fill_rows

RunState = dict[str, Any]
Held = dict[int, list[tuple[int, int, RunState]]]
"""By bucket: (start, stop, state) of the stretches that a rank updates."""


SCALARS = ("step", "mu_product")
"""State of the elementwise optimizers that belongs to a whole variable."""


def gather_state(
    optimizer: Optimizer,
    variables: list[VariableRecord],
    buckets: list[Bucket],
    group: dist.ProcessGroup,
) -> list[VariableRecord]:
    """Put the state of every variable into `optimizer.state`; returns those it was done for.

    A collective: every rank receives the whole state.
    """
    if all(bucket.whole for bucket in buckets):
        return []
    everyone: list[Held] = [{}] * group.size()
    with on_device(variables[0].parameter.device):
        dist.all_gather_object(everyone, _held(buckets), group=group)
    gathered = [variable for variable in variables if not variable.whole]
    for variable in gathered:
        optimizer.state[variable.parameter] = {}
    for bucket in buckets:
        if not bucket.whole:
            owners = (held.get(bucket.index, []) for held in everyone)
            runs = [run for held in owners for run in held]
            _fill(optimizer, bucket, runs)
    return gathered


def _held(buckets: list[Bucket]) -> Held:
    held: Held = {}
    for bucket in buckets:
        if bucket.flat:
            if isinstance(bucket.flat, RowUpdate):
                held[bucket.index] = bucket.flat.held()
                continue
            states = [bucket.flat.state.get(flat, {}) for flat in bucket.flat.flats]
            held[bucket.index] = [
                (low, high, {key: _on_host(value) for key, value in state.items()})
                for (low, high, _, _), state in zip(bucket.flat.runs, states, strict=True)
            ]
    return held


def _on_host(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value


def _fill(optimizer: Optimizer, bucket: Bucket, runs: list[tuple[int, int, RunState]]) -> None:
    if bucket.ranges:
        fill_rows(optimizer, bucket, runs)
        return
    for variable, segment, view in bucket.pieces:
        state = optimizer.state[variable.parameter]
        for low, high, held in runs:
            start, stop = max(low, segment.start), min(high, segment.stop)
            if start >= stop:
                continue
            for key, value in held.items():
                if key in SCALARS or not isinstance(value, Tensor):
                    state[key] = _as_stepped(value, optimizer.param_groups[variable.group], view)
                    continue
                if key not in state:
                    state[key] = torch.zeros_like(variable.alias, dtype=value.dtype)
                part = state[key][segment.region].reshape(-1).clone()
                part[start - segment.start : stop - segment.start] = value[
                    start - low : stop - low
                ].to(part.device)
                state[key][segment.region] = part.view(view.shape)


def _as_stepped(value: Any, group: dict[str, Any], view: Tensor) -> Any:
    """A scalar where torch's optimizers read it: fused and capturable ones beside the values."""
    if not isinstance(value, Tensor):
        return value
    beside = group.get("fused") or group.get("capturable")
    return value.to(view.device, copy=True) if beside else value.clone()


def scatter_state(optimizer: Optimizer, buckets: list[Bucket]) -> None:
    """The reverse, from what the script's optimizer holds: each rank keeps its own parts."""
    flat = [bucket for bucket in buckets if not bucket.whole]
    for bucket in flat:
        if isinstance(bucket.flat, RowUpdate):
            bucket.flat.take_state(optimizer)
        elif bucket.flat:
            for (low, high, _, _), tensor in zip(bucket.flat.runs, bucket.flat.flats, strict=True):
                bucket.flat.state[tensor] = _part(optimizer, bucket, low, high, tensor)
    for bucket in flat:
        for variable in bucket.variables:
            optimizer.state.pop(variable.parameter, None)


def _part(optimizer: Optimizer, bucket: Bucket, low: int, high: int, like: Tensor) -> RunState:
    part: RunState = {}
    for variable, segment, _ in bucket.pieces:
        start, stop = max(low, segment.start), min(high, segment.stop)
        if start >= stop:
            continue
        for key, value in optimizer.state.get(variable.parameter, {}).items():
            if key in SCALARS or not isinstance(value, Tensor):
                part[key] = value.clone() if isinstance(value, Tensor) else value
                continue
            target = part.setdefault(key, torch.zeros_like(like, dtype=value.dtype))
            source = value[segment.region].reshape(-1)
            target[start - low : stop - low] = source[start - segment.start : stop - segment.start]
    return part
