"""`autosync.tune`: search inside a running training job, on its own step and its own ranks."""

import logging
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from autosync.bundle import Bundle, Evidence, make_bundle, save_bundle
from autosync.domain import Domain
from autosync.errors import AutosyncError, InvalidInput
from autosync.runtime.distributed import distribute
from autosync.runtime.sharded_models import check_unsharded
from autosync.runtime.torch_ddp import wrap_in_ddp
from autosync.runtime.transport.process_groups import working_group
from autosync.runtime.transport.rank_agreement import share_initial_values
from autosync.search.loop.memory_store import MemoryStore
from autosync.search.loop.outcome import Outcome, TuningEvent
from autosync.search.loop.proposing import OnEvent
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_loop import tune as run_tuning
from autosync.search.loop.tuning_store import Phase
from autosync.search.overlap_measurement import measure_overlap
from autosync.search.space import Space
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.trials.live.live_cluster import device_type_of, measure_cluster
from autosync.trials.live.live_commands import Verdict
from autosync.trials.live.live_graph import record_job
from autosync.trials.live.live_job import LiveJob, Step, leave
from autosync.trials.live.live_pool import JobPool
from autosync.trials.live.live_transport import serve
from autosync.trials.live.snapshot import Stateful, take_snapshot

log = logging.getLogger("autosync")

SEARCH_SHARE = 0.6
"""Of the time; the rest is for the confirmation."""

FEWEST_TRIALS = 8
"""Strategies that shall fit into the search's time, at the cost of fewer iterations each."""

GRACE = timedelta(minutes=10)
"""How long beyond the tuning's time ranks wait for each other."""

LEAST_TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """Ends the search at one moment of `clock`, in seconds, and the confirmation at a later one."""

    search_until: float
    until: float
    clock: Callable[[], float] = time.monotonic

    def over(self, phase: Phase) -> bool:
        """The tuning loop's stop rule."""
        return self.clock() >= (self.search_until if phase == "search" else self.until)


def tune(
    step: Step,
    model: nn.Module,
    optimizer: Optimizer,
    *,
    minutes: float = 5.0,
    others: Sequence[Stateful] = (),
    batch_size: int | None = None,
    max_grad_norm: float | None = None,
    device_type: str | None = None,
    settings: Settings | None = None,
    space: Space | None = None,
    save: str | Path | None = None,
    on_event: OnEvent | None = None,
) -> tuple[nn.Module, Optimizer]:
    """Try strategies on the live ranks for some minutes; go on training with the best.

    Every rank calls this with its own model (not wrapped in DDP) and optimizer, once
    torch.distributed is initialized. All begin with rank 0's parameters, as under DDP. After it
    parameters, buffers, optimizer and random states are what they were before it; only the
    synchronization has changed: model and optimizer come back as `autosync.distribute` returns
    them.

    step: `step(model, optimizer)` runs one whole iteration: forward, backward and
        `optimizer.step()`. It is run many times, so it should not advance a data loader: let it
        use one batch.
    minutes: of the whole tuning. Where they do not suffice to confirm a winner, DDP is kept.
    others: schedulers, scalers and the like whose state a step changes.
    batch_size: of one rank, by default the leading dimension of the model's first tensor.
    max_grad_norm: as for `distribute`.
    device_type: of this rank's GPU, where its own name is none of `autosync.devices`.
    save: rank 0 writes the bundle there, for `autosync.distribute` in the next run.
    on_event: progress, on rank 0.

    Raises:
        InvalidInput: torch.distributed is not initialized; step does not do what it must.
        NotSupported: the GPU is of no known device type, and none is stated; the model is sharded
            by FSDP or tensor parallelism.
    """
    group = working_group(None)
    check_unsharded(model)
    if isinstance(model, DistributedDataParallel):
        raise InvalidInput(
            "the model is wrapped in DistributedDataParallel already.",
            thing="model",
            remedy="Give tune() the bare model; it wraps it where DDP is the best.",
        )
    if group.size() == 1:
        log.info("one rank has nothing to synchronize")
        return model, optimizer
    begun = time.monotonic()
    until = begun + 60 * minutes
    with _live_job(step, model, optimizer, others, max_grad_norm, minutes) as job:
        job.stated_device_type = device_type
        own_type = _agreed(job, lambda: device_type_of(job.device, device_type))
        recorded = _agreed(job, lambda: record_job(job, batch_size, own_type))
        slowest = max(_gathered(job, recorded.step_seconds))
        job.timeout = timedelta(seconds=max(LEAST_TIMEOUT_SECONDS, 60 * slowest))
        job.renew_groups()
        cluster = _agreed(job, lambda: measure_cluster(job, recorded.step_seconds))
        if dist.get_rank() == 0:
            domain = Domain(recorded.graph, cluster, recorded.profile, recorded.optimizer)
            plan = _fitted(settings or Settings(proposals=4_000), slowest, until)
            now = time.monotonic()
            budget = TimeBudget(now + SEARCH_SHARE * (until - now), until)
            verdict = _lead(job, domain, space or Space(), plan, budget, on_event or _log_event)
        else:
            verdict = serve(job)
    return _go_on(job, verdict, save)


@contextmanager
def _live_job(
    step: Step,
    model: nn.Module,
    optimizer: Optimizer,
    others: Sequence[Stateful],
    max_grad_norm: float | None,
    minutes: float,
) -> Iterator[LiveJob]:
    """The job while it is tuned. However that ends, its state is then what it was, and no process
    group of the tuning is left."""
    waiting = timedelta(minutes=minutes) + GRACE
    control = dist.new_group(backend="gloo", timeout=waiting)
    assert isinstance(control, dist.ProcessGroup)  # every rank is a member
    try:
        share_initial_values(control, model)
        before = take_snapshot(model, optimizer, others)
        job = LiveJob(step, model, optimizer, before, control, waiting, max_grad_norm)
        try:
            yield job
        finally:
            job.end_groups()
            job.before.restore()
            del job.control  # threads and connections end with the last reference
    finally:
        leave(control)


def _agreed(job: LiveJob, task: Callable[[], Any]) -> Any:
    """The task's result on every rank, or the first rank's error on all of them."""
    try:
        result, error = task(), None
    except Exception as raised:  # the user's step may raise anything, on some ranks only
        result, error = None, raised
    told = _gathered(job, None if error is None else f"{type(error).__name__}: {error}")
    for rank, text in enumerate(told):
        if text is not None:
            if error is not None:
                raise error
            raise InvalidInput(f"rank {rank} cannot tune: {text}", thing="step", value=text)
    return result


def _gathered(job: LiveJob, mine: Any) -> list[Any]:
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine, group=job.control)
    return everyone


def _fitted(settings: Settings, step_seconds: float, until: float) -> Settings:
    """Fewer iterations a trial where steps are long for the time there is."""
    left = SEARCH_SHARE * (until - time.monotonic())
    steps = int(left / (FEWEST_TRIALS * 2 * max(step_seconds, 1e-6)))
    usual = settings.warmup + settings.iterations
    if steps >= usual:
        return settings
    return replace(settings, warmup=1, iterations=max(2, steps - 1))


def _lead(
    job: LiveJob,
    domain: Domain,
    space: Space,
    settings: Settings,
    budget: TimeBudget,
    on_event: OnEvent,
) -> Verdict:
    """Rank 0's part. Whatever happens, the other ranks are told how to go on."""
    hosts = len(domain.cluster.nodes)
    pool = JobPool(job, f"job ({domain.world_size} ranks on {hosts} host{'s' * (hosts > 1)})")
    try:
        if job.device.type == "cpu":  # what a GPU does is not recorded
            domain = measure_overlap(pool, domain, settings, on_event)
        store, simulator = MemoryStore(), TimelineSimulator()
        outcome = run_tuning(
            domain, space, lambda: pool, store, simulator, settings, on_event, budget.over
        )
        verdict = Verdict(_shipped(outcome, domain, pool.description))
    except AutosyncError as error:
        verdict = Verdict(None, str(error))
    except Exception as error:  # a process boundary: the training job must go on
        traceback.print_exc()
        verdict = Verdict(None, f"{type(error).__name__}: {error}")
    pool.dismiss(verdict)
    return verdict


def _shipped(outcome: Outcome, domain: Domain, where: str) -> Bundle:
    evidence = Evidence(
        predicted_seconds=outcome.best.predicted_seconds,
        step_seconds=outcome.best_seconds,
        ddp_step_seconds=outcome.ddp_seconds,
        measured_on=where,
    )
    return make_bundle(outcome.best.strategy, domain, evidence)


def _go_on(job: LiveJob, verdict: Verdict, save: str | Path | None) -> tuple[nn.Module, Optimizer]:
    """The model and optimizer to train with, the same way on every rank."""
    if verdict.bundle is None:
        message = f"tuning found no answer, so torch's DDP is used: {verdict.reason}"
        warnings.warn(message, stacklevel=3)
        log.warning(message)
        return wrap_in_ddp(job.model), job.optimizer
    if save is not None and dist.get_rank() == 0:
        save_bundle(verdict.bundle, save)
    return distribute(
        job.model,
        job.optimizer,
        verdict.bundle,
        max_grad_norm=job.max_grad_norm,
        allow_lossy=True,  # such strategies were tried only where the space has their encodings
    )


def _log_event(event: TuningEvent) -> None:
    log.info("%s: %s", event.kind, event.message)
