"""A running training job as a workload: its control group, its process groups, and what is refused
before its first trial."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.optim import Optimizer

from autosync.errors import InvalidInput, NotSupported
from autosync.runtime.distributed import check_distributable
from autosync.runtime.hooks.optimizer_coverage import given_optimizers, warn_unheld
from autosync.runtime.hooks.torch_compile import is_compiled
from autosync.runtime.torch_engines import OF_UNUSED, check_options
from autosync.runtime.transport.agreement import ranks_meet
from autosync.runtime.transport.base import SynchronizationFailed, lost_peer
from autosync.runtime.transport.tensor_exchange import share_initial_values
from autosync.runtime.updates.clipping import check_max_norm, clipping_of_several
from autosync.runtime.updates.optimizers import check_one_backward
from autosync.trials.live.snapshot import Snapshot
from autosync.trials.session import ReusedGroups, RunningJob

LEAVING = timedelta(seconds=10)
"""How long a rank waits for the others before the control group ends."""


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A gloo group of all ranks, on which they communicate while the job is tuned. No trial uses
    it, so that ranks agree even after a trial has failed. Every method raises SynchronizationFailed
    where a rank has died or does not answer."""

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
        try:
            errors = self.gathered(None if error is None else f"{type(error).__name__}: {error}")
        except SynchronizationFailed as lost:  # its own error may be why: the others still wait
            raise lost from error or lost.__cause__
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
        """A barrier with a timeout; rank 0's error names the ranks that did not reach it."""
        with _all_ranks():
            dist.monitored_barrier(self.group, patience, wait_all_ranks=True)

    def share_values(self, model: nn.Module) -> None:
        """Every rank begins with rank 0's parameters and buffers."""
        with _all_ranks():
            share_initial_values(self.group, model)

    def leave(self) -> None:
        """End the group, after all ranks have reached this: what one has sent may still be in
        flight.

        They meet in the store, not on the group: a rank that has failed leaves in the middle of the
        others' collective, and would be taken for a member of it.
        """
        with contextlib.suppress(RuntimeError):  # out of time, or the store has gone with a rank
            default = dist.distributed_c10d._get_default_store()
            store = PrefixStore(f"autosync/{self.group.group_name}/left", default)
            if store.add("ranks", 1) == self.group.size():
                store.set("all", "")
            store.wait(["all"], LEAVING)
        dist.destroy_process_group(self.group)


def open_control(patience: timedelta) -> ControlGroup:
    """A collective. patience: how long a rank waits for another.

    Raises:
        SynchronizationFailed: the ranks do not reach each other.
    """
    with ranks_meet():
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


Step = Callable[..., object]
"""One whole training iteration: forward and backward of one batch or of several, then
`optimizer.step()`. Called as
`step(model, optimizer)`, or `step(model, optimizer, batch)` where the job has batches."""

OptimizerOrSeveral = Optimizer | Sequence[Optimizer]

OF_BATCHES = ("no_sync", "set_requires_gradient_sync")
"""How a step tells DDP and `fully_shard` that another batch follows before its update."""


@contextlib.contextmanager
def takes_no_sync(model: nn.Module) -> Iterator[None]:
    """Inside, a step may call `model.no_sync()`, which does nothing where the model is bare. A step
    may look for it, so no other model gets it."""
    bare = not any(hasattr(model, name) for name in OF_BATCHES)
    if bare:
        model.__dict__["no_sync"] = contextlib.nullcontext
    try:
        yield
    finally:
        if bare:
            del model.__dict__["no_sync"]


@dataclass(slots=True)
class LiveJob:
    """The user's job on this rank.

    optimizer: as the script gave it, one or a list of several; the step is given the same.
    before: its state, restored after every trial. timeout: of a collective within a trial.
    ddp_options: of DistributedDataParallel, where a trial runs it.
    stated_device_type: what the user calls this rank's GPU; None to go by its name.
    batches: this rank's sample of its stream of data, as many as every other rank's; none where the
        step has its own. accumulate: batches whose gradients a step adds up, once it is recorded.
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
    accumulate: int = 1
    group: Any = None
    reused_groups: ReusedGroups = field(default_factory=ReusedGroups)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def optimizers(self) -> list[Optimizer]:
        return given_optimizers(self.optimizer)

    @property
    def as_running(self) -> RunningJob:
        """For `session.attach`."""
        return RunningJob(self.group, self.timeout, self.max_grad_norm, self.ddp_options)

    @property
    def takes_unused(self) -> bool:
        """Whether a step may leave parameters without a gradient."""
        return any(self.ddp_options.get(name) for name in OF_UNUSED)

    def run_step(self, model: nn.Module, iteration: int) -> None:
        """Iterations with the same number have the same batch, on the bare model and in trials."""
        with takes_no_sync(model):
            if self.batches:
                batch = self.batches[iteration % len(self.batches)]
                self.step(model, self.optimizer, batch)
            else:
                self.step(model, self.optimizer)

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


def check_tunable(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    others: Sequence[object],
    max_grad_norm: float | None,
    ddp_options: Mapping[str, Any],
) -> None:
    """Warns of parameters that no optimizer holds.

    Raises:
        InvalidInput: the model or an optimizer is distributed already; an optimizer trains what is
            not the model's; an option is none of DistributedDataParallel's; one of `others` has no
            state to put back.
        NotSupported: the model, or a module of it, is compiled; an option of DDP's contradicts
            every plan; the gradients of several optimizers are to be clipped; a step() needs a
            closure.
    """
    check_distributable(model, optimizers)
    check_one_backward(optimizers)
    check_max_norm(max_grad_norm)
    _refuse_compiled(model)
    check_options(ddp_options, "autosync")
    if max_grad_norm and len(optimizers) > 1:
        raise clipping_of_several()
    check_stateful(others)
    warn_unheld(model, optimizers)


def check_stateful(others: Sequence[object]) -> None:
    """Raises InvalidInput where one of them has no state to put back."""
    for place, other in enumerate(others):
        if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
            kind = type(other).__name__
            raise InvalidInput(
                f"others[{place}] ({kind}) has no state_dict and load_state_dict, so trials could "
                "not put it back.",
                thing=f"others[{place}]",
                value=kind,
                remedy="Give what has both: schedulers, gradient scalers.",
            )


def _refuse_compiled(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if is_compiled(module):
            which = f"module {name!r} of the model" if name else "the model"
            raise NotSupported(
                f"{which} is compiled: the hooks that record its iterations would tear the "
                "compiled region apart, also after the tuning.",
                thing="model",
                value=name or type(model).__name__,
                remedy="Tune the plain model with save=..., and give autosync.distribute the "
                "compiled one with that bundle.",
            )
