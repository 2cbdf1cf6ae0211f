"""The optimizer's state where updates are owned or sharded: split among the ranks while training,
gathered into the script's optimizer for a checkpoint in torch's own layout, or saved in parts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.runtime.layout.records import HeldRange, Records, VariableRecord
from autosync.runtime.transport.agreement import CollectiveCalls
from autosync.runtime.transport.tensor_exchange import exchange_states
from autosync.runtime.updates.optimizers import (
    JoinedOptimizers,
    as_plain,
    held_state,
    plain_step,
    settings_of,
)
from autosync.runtime.updates.part_updates import SCALARS, fill_rows
from autosync.runtime.updates.state_parts import StateParts, boxes_of


@dataclass(frozen=True, slots=True)
class ShardedOptimizerState:
    """Brings the parts of a state together, and takes them apart again.

    group: of the script. control: of all ranks, of gloo. calls: where ranks meet before they
    gather; None where every rank holds everything.
    """

    optimizer: Optimizer
    records: Records
    group: dist.ProcessGroup
    control: Any
    calls: CollectiveCalls | None = None

    def gather(self, call: str = "detach()", to: int | None = None) -> list[VariableRecord]:
        """Put the state of every variable into `optimizer.state`; returns those it was done for.

        A collective. call: of the script, for which it is. to: the only rank that receives the
        whole, in host memory; by default every rank does, on the variables' device.
        """
        if self.calls is not None:
            self.calls.meet(call)
        gathered = [v for v in self._split() if v.group >= 0]
        for variable in gathered:
            held_state(self.optimizer)[variable.parameter] = {}
        travelling = []
        for bucket in self.records.buckets:
            for place, held in enumerate(bucket.update.held_ranges() if bucket.update else ()):
                where = (bucket.index, place, held.start, held.stop)
                if bucket.values_travel:
                    travelling.append((where, held.state))
                else:  # every rank updates all of it
                    self._fill(*where, held.state, to)
        if any(bucket.values_travel for bucket in self.records.buckets):
            for key, state in exchange_states(self.control, travelling, to):
                index, place, start, stop = key
                self._fill(index, place, start, stop, state, to)
        for variable in gathered:
            if not held_state(self.optimizer)[
                variable.parameter
            ]:  # as torch's own has no entry then
                held_state(self.optimizer).pop(variable.parameter)
        return gathered

    def take_parts(self) -> None:
        """The reverse, from what the script's optimizer holds: each rank keeps the parts that it
        updates.

        Raises:
            NotSupported: on every rank, a tensor of it has another shape than its variable.
        """
        if isinstance(self.optimizer, JoinedOptimizers):
            self.optimizer.refresh()
        self._check_shapes()
        for bucket in self.records.buckets:
            if bucket.update:
                bucket.update.take_state(self.optimizer)
        for variable in self._split():
            if variable.group >= 0:
                held_state(self.optimizer).pop(variable.parameter, None)

    def begin(self, optimizer: Optimizer) -> None:
        """Make the state of an optimizer that has none, by a step on gradients that are zero, as
        torch.distributed.checkpoint.state_dict does: this rank's parts of what is split. As in a
        step of torch's own, a variable without a gradient, because it is frozen, gets no state."""
        groups = self._groups_of(optimizer)
        split = (v for v in self._split() if v.group in groups)
        asked = {variable for variable in split if variable.parameter.grad is not None}
        for variable in asked:
            variable.parameter.grad = None
        with as_plain(optimizer):
            plain_step(type(optimizer))(optimizer)
        for bucket in self.records.buckets:
            if bucket.update:
                bucket.update.begin_state(self.optimizer, settings_of(self.optimizer), asked)

    def parts(self, optimizer: Optimizer) -> dict[Tensor, dict[str, Any]]:
        """By parameter that is split, the state that this rank holds of it, its tensors as
        StateParts. Nothing is copied."""
        groups = self._groups_of(optimizer)
        found: dict[Tensor, dict[str, Any]] = {
            v.parameter: {} for v in self._split() if v.group in groups
        }
        for held in self._held(groups):
            entry = found[held.variable.parameter]
            for key, value in held.state.items():
                if not isinstance(value, Tensor) or not value.dim():
                    entry[key] = value
                    continue
                shape = tuple(held.variable.alias.shape)
                whole = entry.setdefault(key, StateParts.made(shape, value.dtype, ()))
                whole.parts.extend(held.parts(value))
        return found

    def load_parts(self, optimizer: Optimizer, loaded: dict[Tensor, dict[str, Any]]) -> None:
        """The reverse: what `parts` gave, with the values that were loaded into it."""
        for held in self._held(self._groups_of(optimizer)):
            for key, value in loaded.get(held.variable.parameter, {}).items():
                if not isinstance(value, StateParts):
                    held.state[key] = value.clone() if isinstance(value, Tensor) else value
                    continue
                own = held.state[key]
                for origin, values in held.parts(own):
                    values.copy_(value.held(origin, tuple(values.shape)))
                    if own.is_sparse:
                        held.state[key] = values.to_sparse(1).coalesce()

    def _check_shapes(self) -> None:
        held = held_state(self.optimizer)
        for variable in self._split():
            if variable.group < 0 or any(bucket.ranges for bucket in variable.buckets):
                continue
            for key, value in held.get(variable.parameter, {}).items():
                of_elements = isinstance(value, Tensor) and key not in SCALARS
                if of_elements and value.shape != variable.alias.shape:
                    raise _other_shape(variable, key, value)

    def _split(self) -> list[VariableRecord]:
        """Variables whose state is not with the script's optimizer."""
        return [variable for variable in self.records.variables if not variable.whole]

    def _held(self, groups: Sequence[int]) -> Iterator[HeldRange]:
        for bucket in self.records.buckets:
            held = bucket.update.held_ranges() if bucket.update else ()
            yield from (one for one in held if one.variable.group in groups)

    def _groups_of(self, optimizer: Optimizer) -> Sequence[int]:
        """Those of the script's parameter groups, counted over all its optimizers."""
        if not isinstance(self.optimizer, JoinedOptimizers):
            return range(len(self.optimizer.param_groups))
        number = self.optimizer.optimizers.index(optimizer)
        return [group for group, owner in enumerate(self.optimizer.owners()) if owner == number]

    def _fill(
        self, index: int, place: int, start: int, stop: int, state: dict[str, Any], to: int | None
    ) -> None:
        """Put the state of start:stop of a bucket, its range number `place`, into the script's
        optimizer."""
        bucket = self.records.buckets[index]
        device = bucket.variables[0].alias.device if to is None else torch.device("cpu")
        if bucket.ranges:
            fill_rows(self.optimizer, bucket.ranges[place], state, device)
            return
        for variable, box in boxes_of(bucket, start, stop):
            if variable.group < 0:
                continue
            whole = held_state(self.optimizer)[variable.parameter]
            group = self.optimizer.param_groups[variable.group]
            for key, value in state.items():
                if key in SCALARS or not isinstance(value, Tensor):
                    whole[key] = _as_stepped(value, group, device)
                    continue
                if key not in whole:
                    whole[key] = torch.zeros_like(variable.alias, dtype=value.dtype, device=device)
                whole[key][box.region] = box.view(value, start).to(device)


def asks_for_state(optimizer: Optimizer) -> bool:
    """Whether a `step()` without a backward pass is one by which torch's `get_state_dict` makes the
    state of an optimizer that has none: learning rates and gradients are zero."""
    if held_state(optimizer) or any(float(group.get("lr", 1)) for group in optimizer.param_groups):
        return False
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in held if parameter.grad is not None]
    return bool(gradients) and not any(bool(gradient.any()) for gradient in gradients)


def _as_stepped(value: Any, group: dict[str, Any], device: torch.device) -> Any:
    """A scalar where torch's optimizers read it: fused and capturable ones beside the values."""
    if not isinstance(value, Tensor):
        return value
    beside = group.get("fused") or group.get("capturable")
    return value.to(device, copy=True) if beside else value.cpu().clone()


def _other_shape(variable: VariableRecord, key: str, value: Tensor) -> NotSupported:
    return NotSupported(
        f"the optimizer's state {key!r} of variable {variable.name!r} has shape "
        f"{tuple(value.shape)}, the variable {tuple(variable.alias.shape)}: under this plan each "
        "rank updates some of its elements, and keeps the state of those.",
        thing=f"optimizer.state of {variable.name}",
        value=tuple(value.shape),
        remedy="Put a tensor of the variable's shape there, or remove the entry: the optimizer "
        "begins it anew.",
    )
