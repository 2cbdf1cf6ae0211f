"""The optimizer's state where updates are owned or sharded: split among the ranks while training,
gathered into the script's optimizer for a checkpoint, in torch's own layout."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from autosync.runtime.device.streams import on_device
from autosync.runtime.layout.records import Bucket, RangeState, Records, VariableRecord
from autosync.runtime.payloads.powersgd import LowRank
from autosync.runtime.payloads.powersgd_state import SavedErrors, gather_errors, restore_errors
from autosync.runtime.transport.collective_call import CollectiveCalls
from autosync.runtime.updates.flat_update import SCALARS
from autosync.runtime.updates.joined_optimizers import JoinedOptimizers
from autosync.runtime.updates.row_update import fill_rows
from autosync.runtime.updates.twin_optimizer import held_state


@dataclass(frozen=True, slots=True)
class ShardedOptimizerState:
    """Brings the parts of a state together, and takes them apart again.

    low_rank: the matrices that PowerSGD packs, whose errors belong to a checkpoint. group: of the
    script. control: of all ranks, for small exchanges. calls: where ranks meet before they gather;
    None where every rank holds everything.
    """

    optimizer: Optimizer
    records: Records
    low_rank: Sequence[LowRank]
    group: dist.ProcessGroup
    control: Any
    calls: CollectiveCalls | None = None

    def gather(self, call: str = "detach()") -> list[VariableRecord]:
        """Put the state of every variable into `optimizer.state`; returns those it was done for.

        A collective: every rank receives the whole state. call: of the script, for which it is.
        """
        if self.calls is not None:
            self.calls.meet(call)
        variables, buckets = self.records.variables, self.records.buckets
        if all(bucket.whole for bucket in buckets):
            return []
        mine = {b.index: b.update.state_by_range() for b in buckets if b.update}
        everyone: list[dict[int, list[RangeState]]] = [{}] * self.group.size()
        with on_device(variables[0].parameter.device):
            dist.all_gather_object(everyone, mine, group=self.group)
        gathered = [v for v in variables if not v.whole and v.group >= 0]
        for variable in gathered:
            held_state(self.optimizer)[variable.parameter] = {}
        for bucket in buckets:
            if not bucket.whole:
                owners = (states.get(bucket.index, []) for states in everyone)
                _fill(self.optimizer, bucket, [state for states in owners for state in states])
        return gathered

    def gather_errors(self) -> SavedErrors:
        """Of PowerSGD. A collective."""
        return gather_errors(self.optimizer, self.low_rank, self.control)

    def scatter(self, errors: SavedErrors) -> None:
        """The reverse, from what the script's optimizer holds: each rank keeps the parts that it
        updates, and its part of PowerSGD's errors."""
        self.take_parts()
        restore_errors(self.optimizer, self.low_rank, errors, self.group.size())

    def take_parts(self) -> None:
        """Each rank keeps the parts that it updates of what the script's optimizer holds."""
        if isinstance(self.optimizer, JoinedOptimizers):
            self.optimizer.refresh()
        split = [bucket for bucket in self.records.buckets if not bucket.whole]
        for bucket in split:
            if bucket.update:
                bucket.update.take_state(self.optimizer)
        for bucket in split:
            for variable in bucket.variables:
                if variable.group >= 0:
                    held_state(self.optimizer).pop(variable.parameter, None)


def _fill(optimizer: Optimizer, bucket: Bucket, states: list[RangeState]) -> None:
    if bucket.ranges:
        fill_rows(optimizer, bucket, states)
        return
    for variable, segment, _ in bucket.pieces:
        if variable.group < 0:
            continue
        state = held_state(optimizer)[variable.parameter]
        for low, high, of_range in states:
            start, stop = max(low, segment.start), min(high, segment.stop)
            if start >= stop:
                continue
            for key, value in of_range.items():
                if key in SCALARS or not isinstance(value, Tensor):
                    state[key] = _as_stepped(
                        value, optimizer.param_groups[variable.group], variable.alias
                    )
                    continue
                if key not in state:
                    state[key] = torch.zeros_like(variable.alias, dtype=value.dtype)
                flat = segment.flat_of(state[key]).clone()
                flat[start - segment.start : stop - segment.start] = value[
                    start - low : stop - low
                ].to(flat.device)
                here = replace(segment, start=0, stop=len(flat))
                state[key][segment.region] = here.view_of(flat)


def _as_stepped(value: Any, group: dict[str, Any], like: Tensor) -> Any:
    """A scalar where torch's optimizers read it: fused and capturable ones beside the values."""
    if not isinstance(value, Tensor):
        return value
    beside = group.get("fused") or group.get("capturable")
    return value.to(like.device, copy=True) if beside else value.clone()
