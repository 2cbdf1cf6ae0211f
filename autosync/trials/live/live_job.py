"""A running training job as a workload: what one rank does in its trials."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autosync.runtime.hooks.optimizer_coverage import given_optimizers
from autosync.trials.live.control_group import ControlGroup
from autosync.trials.live.snapshot import Snapshot
from autosync.trials.trial_attachment import ReusedGroups
from autosync.trials.worker.timed_messages import MessageGroups

Step = Callable[..., object]
"""One whole training iteration: forward, backward, `optimizer.step()`. Called as
`step(model, optimizer)`, or `step(model, optimizer, batch)` where the job has batches."""

OptimizerOrSeveral = Optimizer | Sequence[Optimizer]


@dataclass(slots=True)
class LiveJob:
    """The user's job on this rank.

    optimizer: as the script gave it, one or a list of several; the step is given the same.
    before: its state, restored after every trial. timeout: of a collective within a trial.
    ddp_options: of DistributedDataParallel, where a trial runs it.
    stated_device_type: what the user calls this rank's GPU; None to go by its name.
    batches: this rank's sample of its stream of data, as many as every other rank's; none where the
        step has its own.
    """

    step: Step
    model: nn.Module
    optimizer: OptimizerOrSeveral
    before: Snapshot
    control: ControlGroup
    timeout: timedelta
    max_grad_norm: float | None = None
    ddp_options: Mapping[str, Any] = field(default_factory=dict)
    stated_device_type: str | None = None
    batches: Sequence[Any] = ()
    group: Any = None
    reused_groups: ReusedGroups = field(default_factory=ReusedGroups)
    message_groups: MessageGroups = field(default_factory=MessageGroups)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def optimizers(self) -> list[Optimizer]:
        return given_optimizers(self.optimizer)

    @property
    def takes_unused(self) -> bool:
        """Whether a step may leave parameters without a gradient."""
        finders = ("find_unused_parameters", "static_graph")
        return any(self.ddp_options.get(name) for name in finders)

    def run_step(self, model: nn.Module, iteration: int) -> None:
        """Iterations with the same number have the same batch, on the bare model and in trials."""
        if self.batches:
            batch = self.batches[iteration % len(self.batches)]
            self.step(model, self.optimizer, batch)
        else:
            self.step(model, self.optimizer)

    def renew_groups(self) -> None:
        """Process groups of the trials to come. Every rank calls this at the same time."""
        self.end_groups()
        self.group = dist.new_group(timeout=self.timeout)
        self.message_groups = MessageGroups(self.timeout)

    def abort_groups(self) -> None:
        """What is in flight on the trials' groups fails."""
        self.reused_groups.close()
        self.message_groups.close()
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
