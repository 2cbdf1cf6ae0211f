"""Puts a trial's plan under a running job's model and takes it off again."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from autosync.bundle import Bundle
from autosync.errors import AutosyncError, NotSupported
from autosync.extensions.offload.host_swapper import swap_to_host
from autosync.extensions.offload.swap_choice import Swap
from autosync.extensions.offload.swap_device import check_swappable
from autosync.plan import Plan
from autosync.runtime import attachment as runtime
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.torch_engines import add_hook, wrap_in_ddp
from autosync.runtime.transport.failures import SynchronizationFailed
from autosync.runtime.updates.clipping import clip_before_step
from autosync.trials.live.live_job import LiveJob


@dataclass(slots=True)
class LiveAttachment:
    """abandon: after a failure, let go of everything without waiting."""

    model: nn.Module
    flush: Callable[[], None]
    detach: Callable[[], None]
    abandon: Callable[[], None]


def attach_live(
    job: LiveJob, bundle: Bundle, trace: ExecutionTrace | None = None
) -> LiveAttachment:
    """Synchronize the job's model as the bundle says, on the groups of its trials, and swap what
    the strategy does.

    trace: as for `autosync.trials.trial_attachment.attach`.

    Raises:
        NotSupported: the optimizer or the backend cannot do what the plan asks, or a module cannot
            be placed; activations are to be swapped and the model is on no GPU; or torch's
            `fully_shard` would shard the job's own parameters, which cannot be undone.
    """
    swap = bundle.strategy.swap
    if swap is not None:
        check_swappable(job.model, job.model)
    attached = _attach(job, bundle, trace)
    if swap is not None:
        _add_swapping(attached, job, swap)
    return attached


def _add_swapping(attached: LiveAttachment, job: LiveJob, swap: Swap) -> None:
    """Until it is detached or abandoned."""
    try:
        swapper = swap_to_host(job.model, swap, job.optimizers)
    except AutosyncError:  # an arena does not hold the model
        attached.abandon()
        raise
    detach, abandon = attached.detach, attached.abandon

    def without_swapping(let_go: Callable[[], None]) -> Callable[[], None]:
        def both() -> None:
            try:
                swapper.remove(keep_state=False)  # what it was before the trial is put back
            finally:
                let_go()

        return both

    attached.detach, attached.abandon = without_swapping(detach), without_swapping(abandon)


def _attach(job: LiveJob, bundle: Bundle, trace: ExecutionTrace | None) -> LiveAttachment:
    if bundle.plan.engine == "fully_shard":
        raise NotSupported(
            "torch's fully_shard cannot be tried on a running job's model: it cannot be taken off.",
            thing="plan.engine",
            value="fully_shard",
            remedy="Measure it by `autosync tune`, or give autosync.distribute its bundle.",
        )
    if bundle.plan.engine == "ddp":
        return _attach_ddp(job, bundle.plan)
    names = tuple(variable.name for variable in bundle.variables)
    attachment = runtime.attach(
        job.model,
        job.optimizer,
        bundle.plan,
        names,
        job.group,
        max_grad_norm=job.max_grad_norm,
        share_values=False,
        groups=job.reused_groups.get(job.group, job.device),
        trace=trace,
        agreed=True,  # rank 0 has just told all the others
    )

    def abandon() -> None:
        monitor = attachment.engine.monitor
        with monitor.condition:
            if monitor.failure is None:
                monitor.failure = SynchronizationFailed("the trial was abandoned.")
            monitor.condition.notify_all()
        attachment.detach()
        if attachment.placed is not None:
            attachment.placed.values.renew()

    def detach() -> None:
        attachment.detach(keep_state=False)  # what it was before the trial is put back

    return LiveAttachment(job.model, attachment.engine.flush, detach, abandon)


def _attach_ddp(job: LiveJob, plan: Plan) -> LiveAttachment:
    # replicas are equal: every trial begins with the restored state
    options = job.ddp_options
    replicas = [
        wrap_in_ddp(job.model, plan.bucket_bytes, job.group, share_values=False, options=options)
    ]
    add_hook(replicas[0], plan, job.group)
    alive = weakref.ref(replicas[0])
    clips = [
        clip_before_step(job.model, optimizer, job.max_grad_norm)
        for optimizer in job.optimizers
        if job.max_grad_norm
    ]
    attached = LiveAttachment(replicas[0], lambda: None, lambda: None, lambda: None)

    def let_go() -> None:
        replicas.clear()
        while clips:
            clips.pop().remove()
        attached.model = job.model
        gc.collect()  # the reducer is in a reference cycle, and its hooks live as long as it

    def detach() -> None:
        let_go()
        if alive() is not None:
            raise NotSupported(
                "step keeps a reference to the model it was given, so torch's DDP cannot be "
                "taken off again.",
                thing="step",
                remedy="Use the model within the step only; keep the original one elsewhere.",
            )

    attached.detach, attached.abandon = detach, let_go
    return attached
