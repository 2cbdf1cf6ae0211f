"""A running training job as a workload: what one rank does in its trials."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.optim import Optimizer

from autosync.trials.live.snapshot import Snapshot
from autosync.trials.trial_attachment import ReusedGroups

Step = Callable[[Any, Optimizer], object]
"""One whole training iteration: forward, backward, `optimizer.step()`."""

LEAVING = timedelta(seconds=10)
"""How long a rank that leaves waits for the others."""


@dataclass(slots=True)
class LiveJob:
    """The user's job on this rank.

    before: its state, restored after every trial. control: a gloo group that no trial uses, so
    that ranks agree even after a trial has failed. timeout: of a collective within a trial.
    stated_device_type: what the user calls this rank's GPU; None to go by its name.
    """

    step: Step
    model: nn.Module
    optimizer: Optimizer
    before: Snapshot
    control: dist.ProcessGroup
    timeout: timedelta
    max_grad_norm: float | None = None
    stated_device_type: str | None = None
    group: Any = None
    reused_groups: ReusedGroups = field(default_factory=ReusedGroups)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def renew_groups(self) -> None:
        """Process groups of the trials to come. Every rank calls this at the same time."""
        self.end_groups()
        self.group = dist.new_group(timeout=self.timeout)

    def abort_groups(self) -> None:
        """What is in flight on the trials' groups fails."""
        self.reused_groups.close()
        if self.group is not None:
            with contextlib.suppress(RuntimeError):  # it may have failed already
                self.group._get_backend(self.device).abort()

    def end_groups(self) -> None:
        """Peers that wait for this rank fail at once, not after the timeout: with the last
        reference to a group its connections close."""
        self.abort_groups()
        if self.group is not None:
            dist.destroy_process_group(self.group)
            self.group = None


def leave(control: dist.ProcessGroup) -> None:
    """End a control group. All ranks wait for each other before, since what one has told another
    may still be in flight; one that does not come in time fails in what it exchanges.

    They meet in the store, not on the group: a rank that has failed leaves in the middle of the
    others' exchange, and would be taken for a member of it.
    """
    with contextlib.suppress(RuntimeError):  # out of time, or the store has gone with a rank
        default = dist.distributed_c10d._get_default_store()
        store = PrefixStore(f"autosync/{control.group_name}/left", default)
        if store.add("ranks", 1) == control.size():
            store.set("all", "")
        store.wait(["all"], LEAVING)
    dist.destroy_process_group(control)
