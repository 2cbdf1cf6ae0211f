"""Attaches a plan to a model and its optimizer, and detaches it."""

import atexit
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autosync.errors import AutosyncError, InvalidInput, NotSupported
from autosync.extensions.seams import AttachedDivision, divisions_of, engine_of
from autosync.nccl_knobs import NcclKnobs
from autosync.plan import Plan
from autosync.runtime.attached_models import ATTACHED, check_plain
from autosync.runtime.device.model_tensors import check_own_places, device_of, warn_of_backend
from autosync.runtime.device.streams import Streams, streams_for
from autosync.runtime.engine_builder import build_engine
from autosync.runtime.execution.engine import EXIT_SECONDS, Engine
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.hooks import model_hooks
from autosync.runtime.hooks.forward_gates import Gates
from autosync.runtime.hooks.model_hooks import ModelMethods, PlainCopies, Removable
from autosync.runtime.hooks.optimizer_coverage import CoverageGuard, check_held, given_optimizers
from autosync.runtime.hooks.synchronized_optimizer import adopt, follows_plan, release
from autosync.runtime.records_builder import build_buckets, held_by
from autosync.runtime.transport.agreement import (
    PATIENCE,
    RankMeeting,
    agreed_everywhere,
    check_same_plan,
    meeting_of,
    ranks_meet,
)
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.runtime.transport.process_groups import Groups, open_groups, working_group
from autosync.runtime.transport.tensor_exchange import share_initial_values
from autosync.runtime.updates.optimizers import JoinedOptimizers, make_first_state

ABANDON_SECONDS = 10.0
"""How long a device may continue updates after a failure."""


@dataclass(slots=True)
class Attachment:
    """An attached plan. `detach` restores the plain model and optimizers, with trained values.

    given: the optimizer, or the list of several, as the script gave it. divisions: parts of the
    model on ranks of their own.
    """

    model: nn.Module
    optimizers: Sequence[Optimizer]
    engine: Engine
    gates: Gates
    end_groups: Callable[[], None]
    given: Optimizer | Sequence[Optimizer]
    divisions: list[AttachedDivision] = field(default_factory=list)
    handles: list[Removable] = field(default_factory=list)

    @property
    def failure(self) -> AutosyncError | None:
        return self.engine.monitor.failure

    @property
    def rank(self) -> int:
        return self.engine.state.group.rank()

    def flush(self) -> None:
        self.engine.flush()

    def stop(self, error: AutosyncError) -> None:
        self.engine.monitor.stop(error)

    def detach(self, keep_state: bool = True) -> None:
        """Finish what is in flight, then remove hooks, threads and process groups.

        A collective where updates are owned or sharded, or ranks divide the model: what some ranks
        do not hold is gathered, optimizer state unless nobody wants to keep it. Where a peer is
        lost meanwhile, it raises, and the plan is off all the same. After a failure nothing is
        waited for, and what this rank does not hold is lost, too.

        Raises:
            NotSupported: an optimizer has yet to step. The plan stays on.
            SynchronizationFailed: a peer died, or did not come.
        """
        self.engine.leave()
        if self.failure is None:
            try:
                self._finish(keep_state)
            except AutosyncError as error:
                if self.failure is None and not isinstance(error, SynchronizationFailed):
                    raise  # the script can go on
                self._take_off()
                raise
        self._take_off()

    def _finish(self, keep_state: bool) -> None:
        """Every rank holds what it takes along, and nothing is in flight."""
        engine = self.engine
        engine.flush()
        engine.streams.synchronize()
        engine.streams.synchronize_current()  # module buffers: an ended group aborts them
        if keep_state:
            engine.script_state.show("detach()")
        for division in self.divisions:
            with engine.monitor.exchange("the gathering of placed modules"):
                division.give_back(keep_state)
        if self.end_groups is not _leave_open:
            with suppress(RuntimeError):  # nothing is in flight here: a peer may go first
                engine.control.barrier(dist.BarrierOptions()).wait()

    def _take_off(self) -> None:
        engine = self.engine
        atexit.unregister(self.at_exit)
        self._unhook()
        self.end_groups()
        engine.close()
        if self.failure is not None:
            _abandon_updates(engine.streams)
        for optimizer in self.optimizers:  # where nobody keeps what ranks held in parts
            make_first_state(optimizer)
        for variable in engine.variables:
            variable.parameter.grad = None

    def _unhook(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.gates.close()
        self.engine.pending_parameters.release_all()
        for optimizer in self.optimizers:
            if follows_plan(optimizer):
                release(optimizer)
        ATTACHED.plans.pop(id(self.model), None)

    def at_exit(self) -> None:
        """The messages of the last `step()` complete before the interpreter goes."""
        self.engine.leave()
        self.engine.finish()
        self.end_groups()
        self.engine.close(EXIT_SECONDS)

    def undo(self) -> None:
        """Undo the changes to model and optimizer of an attachment that failed half way."""
        atexit.unregister(self.at_exit)
        self._unhook()
        self.engine.close()


def attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    plan: Plan,
    names: tuple[str, ...],
    process_group: dist.ProcessGroup | None = None,
    *,
    max_grad_norm: float | None = None,
    share_values: bool = True,
    groups: Groups | None = None,
    trace: ExecutionTrace | None = None,
    agreed: bool = False,
    streams: Streams | None = None,
    called: nn.Module | None = None,
) -> Attachment:
    """Begin to synchronize as the plan says. A collective over the process group.

    optimizer: of the model, or several that hold different parameters of it.
    names: the plan's variables, in its order, as `model.named_parameters()` has them.
    max_grad_norm: clip by the true global norm before every update.
    share_values: begin with rank 0's parameters and buffers on every rank.
    groups: from `open_groups`, kept open by the caller for plan after plan; by default the
        attachment opens and ends its own.
    trace: receives an event for every executed message, and for every deal between ranks that
        divide the model.
    agreed: whoever handed out the plan gave all ranks the same one; they need not compare.
    streams: how the device's work is ordered, and how messages get to the backend; by default as
        the model's device and the process group's backend need it.
    called: what the script calls in place of the model: what `torch.compile(model)` made of it.

    When it raises, model and optimizer are as they were before (but for shared values), and groups
    that it opened have ended.

    Raises:
        InvalidInput: the plan is for another world size or another model, or differs from rank
            0's; or the model or an optimizer follows a plan already, or an optimizer trains what
            is not the model's.
        SynchronizationFailed: a peer died or hung.
        NotSupported: the optimizer or the backend cannot do what the plan asks, or the model is
            neither in host memory nor on one NVIDIA GPU.
    """
    optimizers = given_optimizers(optimizer)
    check_plain(model, optimizers)
    check_held(model, optimizers)
    group = working_group(process_group)
    device = device_of(model)
    check_own_places(model)
    _check_runs_here(plan, group)
    opened = groups or open_groups(group, device)
    warn_of_backend(opened.backend, group.size())
    divisions = divisions_of(plan, model, optimizers, opened.backend)
    held = held_by(plan, names, group.rank())
    if trace is not None:
        trace.plan_index = held.messages
    streams = streams or streams_for(device, opened.backend, timed=trace is not None)
    opened = opened.on(streams, plan.extension(NcclKnobs))
    end_groups = _leave_open if groups else opened.close
    joined = optimizers[0] if len(optimizers) == 1 else JoinedOptimizers(optimizers)
    with ExitStack() as undo:
        undo.callback(end_groups)
        meeting = meet(model, plan, group, opened, share_values, agreed)
        control = meeting.control
        with agreed_everywhere(control, patience=PATIENCE):  # before any other group is opened
            built = build_buckets(model, joined, held.plan, held.names, opened.rank, streams)
        with agreed_everywhere(control, patience=PATIENCE):
            with ranks_meet():
                engine = build_engine(
                    model,
                    joined,
                    held,
                    built,
                    group,
                    opened,
                    meeting,
                    max_grad_norm,
                    trace,
                    alike=share_values,
                )
            attachment = Attachment(
                model,
                optimizers,
                engine,
                Gates(model, engine.variables, engine.wait_for, called),
                end_groups,
                given=optimizer,
            )
            undo.callback(attachment.undo)
            atexit.register(attachment.at_exit)
            for one in optimizers:
                undo.callback(one.state.update, dict(one.state))
            engine.script_state.begin()
            streams.synchronize_current()
            engine.start()
            _install(attachment, clips=bool(max_grad_norm))
        for divide in divisions:  # after all have come so far: it opens groups
            with agreed_everywhere(control, patience=PATIENCE):
                with ranks_meet():
                    division = divide(group, opened, meeting.store, engine.monitor)
                attachment.divisions.append(division)
                attachment.handles.append(division)
        for division in attachment.divisions:  # no rank goes back from here
            division.release()
        undo.pop_all()
    ATTACHED.plans[id(model)] = attachment
    return attachment


def meet(
    model: nn.Module,
    plan: Plan,
    group: dist.ProcessGroup,
    groups: Groups,
    share_values: bool,
    agreed: bool,
) -> RankMeeting:
    """All ranks begin with the same plan and, where asked, with rank 0's values. See `attach`.

    Raises:
        InvalidInput: a rank has another plan or another model.
        SynchronizationFailed: a peer does not come.
    """
    with ranks_meet():
        control = groups.get("control", tuple(range(group.size())), "gloo")
        if not agreed:
            check_same_plan(control, plan)
        if share_values:
            share_initial_values(control, model, group if groups.backend == "nccl" else None)
        return meeting_of(groups, control)


def _install(attachment: Attachment, clips: bool) -> None:
    """Make model and optimizers follow the engine. clips: in the `step()` of these."""
    model, engine = attachment.model, attachment.engine
    guard = CoverageGuard(
        model,
        attachment.optimizers,
        [variable.parameter for variable in engine.variables],
        {v.name: v.parameter for v in engine.variables if v.deferred or not v.whole},
        {v.name: v.parameter for v in engine.variables} if clips else None,
        reporting=engine.monitor.reporting,
    )
    attachment.handles += [guard.watch_others(), PlainCopies(model, engine.flush)]
    for optimizer in attachment.optimizers:
        adopt(optimizer, engine, guard)
    monitor = engine.monitor
    attachment.handles.append(
        ModelMethods(model, engine.no_sync, monitor.reporting, engine.optimizer_step.clear_model)
    )
    model_hooks.install(attachment.handles, model, engine, attachment.gates)


def attachment_of(model: nn.Module) -> Attachment | None:
    """The plan that a model follows, compiled or not; None where the exact engine does not
    run it."""
    plan = ATTACHED.plan_of(model)
    return plan if isinstance(plan, Attachment) else None


def _check_runs_here(plan: Plan, group: dist.ProcessGroup) -> None:
    if group.size() != plan.world_size:
        raise InvalidInput(
            f"the plan is for {plan.world_size} ranks, the process group has {group.size()}.",
            thing="plan.shares",
            value=plan.world_size,
            remedy="Tune for this number of ranks.",
        )
    if engine_of(plan) is not None:
        keys = [entry.key for entry in plan.extensions]
        raise NotSupported(
            f"the plan has {' and '.join(keys)}, and this engine runs exact plans only.",
            thing="plan.extensions",
            value=keys,
            remedy="Give the bundle to autosync.distribute with allow_inexact=True, or use a "
            "strategy without it.",
        )


def _leave_open() -> None:
    """The caller of `attach` ends its own groups."""


def _abandon_updates(streams: Streams) -> None:
    """Wait for the device's updates after a failure, so that they do not overwrite what follows,
    such as restored weights. Groups have ended, so no update waits for a peer; one that does not
    end counts as lost."""
    deadline = time.monotonic() + ABANDON_SECONDS
    with suppress(RuntimeError):  # of a device that has failed itself
        while not streams.idle() and time.monotonic() < deadline:
            time.sleep(0.01)
