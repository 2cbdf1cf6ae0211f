"""The group on which the ranks of a running job communicate while it is tuned. No trial uses it, so
that ranks agree even after a trial has failed."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore

from autosync.errors import InvalidInput
from autosync.runtime.transport.base import lost_peer
from autosync.runtime.transport.tensor_exchange import share_initial_values

LEAVING = timedelta(seconds=10)
"""How long a rank that leaves waits for the others."""


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A gloo group of all ranks. Every method raises SynchronizationFailed where a rank has died or
    does not come: no rank can go on then."""

    group: dist.ProcessGroup

    def gathered(self, mine: Any) -> list[Any]:
        """The argument of every rank, by rank, on all of them."""
        everyone: list[Any] = [None] * self.group.size()
        with _all_ranks():
            dist.all_gather_object(everyone, mine, group=self.group)
        return everyone

    def agreed(self, task: Callable[[], Any]) -> Any:
        """The task's result on every rank, or the first rank's error on all of them.

        Raises:
            InvalidInput: another rank's task failed; where this one's did, its own error.
        """
        try:
            result, error = task(), None
        except Exception as raised:  # the user's step may raise anything, on some ranks only
            result, error = None, raised
        errors = self.gathered(None if error is None else f"{type(error).__name__}: {error}")
        for rank, text in enumerate(errors):
            if text is not None:
                if error is not None:
                    raise error
                raise InvalidInput(f"rank {rank} cannot tune: {text}", thing="step", value=text)
        return result

    def from_first(self, value: Any = None) -> Any:
        """Rank 0's argument, on every rank."""
        carried = [value]
        with _all_ranks():
            dist.broadcast_object_list(carried, src=0, group=self.group)
        return carried[0]

    def meet(self, patience: timedelta) -> None:
        """Wait until every rank has come, for that long; then rank 0's error names who has not."""
        with _all_ranks():
            dist.monitored_barrier(self.group, patience, wait_all_ranks=True)

    def share_values(self, model: nn.Module) -> None:
        """Every rank begins with rank 0's parameters and buffers."""
        with _all_ranks():
            share_initial_values(self.group, model)

    def leave(self) -> None:
        """End the group. All ranks wait for each other before, since what one has sent may still be
        in flight; one that does not come in time fails in what it exchanges.

        They meet in the store, not on the group: a rank that has failed leaves in the middle of the
        others' exchange, and would be taken for a member of it.
        """
        with contextlib.suppress(RuntimeError):  # out of time, or the store has gone with a rank
            default = dist.distributed_c10d._get_default_store()
            store = PrefixStore(f"autosync/{self.group.group_name}/left", default)
            if store.add("ranks", 1) == self.group.size():
                store.set("all", "")
            store.wait(["all"], LEAVING)
        dist.destroy_process_group(self.group)


def open_control(patience: timedelta) -> ControlGroup:
    """A collective. patience: how long a rank waits for another."""
    group = dist.new_group(backend="gloo", timeout=patience)
    assert isinstance(group, dist.ProcessGroup)  # every rank is a member
    return ControlGroup(group)


@contextlib.contextmanager
def job_control(patience: timedelta) -> Iterator[ControlGroup]:
    """As `open_control`; however the block ends, the group ends, too."""
    control = open_control(patience)
    try:
        yield control
    finally:
        control.leave()


@contextlib.contextmanager
def _all_ranks() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # what torch raises for a broken process group
        text = f"a rank of the job was lost while it was tuned: {error}"
        raise lost_peer(text, "process_group", None, state_is_split=False) from error
