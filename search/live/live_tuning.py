"""`autosync.tune`: search inside a running training job, on its own step and its own ranks."""

import itertools
import logging
import os
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autosync.atomic_write import replaced_atomically, warned_if_unwritten
from autosync.bundle import Bundle, make_bundle, save_bundle
from autosync.documents import to_json
from autosync.domain import Domain
from autosync.errors import AutosyncError, InvalidInput
from autosync.runtime.distributed import distribute, in_ddp
from autosync.runtime.drift_watch import OnDrift
from autosync.runtime.hooks.optimizer_coverage import given_optimizers
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.runtime.transport.process_groups import working_group
from autosync.search.cluster_probe import measure_overlap
from autosync.search.designs import known_designs
from autosync.search.live.message_costs import measure_message_costs
from autosync.search.live.sharded_answers import (
    check_untrained,
    no_room_beside_values,
    why_next_run,
)
from autosync.search.live.time_budget import (
    PROBE_SHARE,
    SEARCH_SHARE,
    TimeBudget,
    collective_timeout,
    patience_of,
    with_fewer_iterations,
    with_fewer_proposals,
)
from autosync.search.loop.earlier_document import EarlierTrials
from autosync.search.loop.earlier_trials import known_from, read_earlier, trials_of, usable
from autosync.search.loop.outcome import OnEvent, TuningEvent, shipped_bundle
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_loop import tune as run_tuning
from autosync.search.loop.tuning_store import MemoryStore
from autosync.search.space import Space, SpaceName, check_in_running_job, space_named
from autosync.simulator.learned.checkpoint import default_simulator
from autosync.simulator.numba_cache import compilations_told
from autosync.trials.live.job import ControlGroup, LiveJob, Step, check_tunable, job_control
from autosync.trials.live.job_cluster import device_type_of, gpu_sharing, measure_cluster
from autosync.trials.live.job_pool import JobPool, Verdict, serve
from autosync.trials.live.snapshot import Stateful, take_snapshot
from autosync.trials.live.step_graph import record_job

log = logging.getLogger("autosync")

Optimizers = TypeVar("Optimizers", bound=Optimizer | Sequence[Optimizer])

Since = Bundle | EarlierTrials | str | Path

MOST_BATCHES = 16
"""Of a stream of data that a tuning keeps: more than the iterations of a trial by default."""


def tune(
    step: Step,
    model: nn.Module,
    optimizer: Optimizers,
    *,
    batches: Iterable[Any] | None = None,
    minutes: float = 5.0,
    others: Sequence[Stateful] = (),
    batch_size: int | None = None,
    max_grad_norm: float | None = None,
    ddp_options: Mapping[str, Any] | None = None,
    device_type: str | None = None,
    settings: Settings | None = None,
    space: Space | SpaceName | None = None,
    save: str | Path | None = None,
    since: Since | None = None,
    trials: str | Path | None = None,
    on_event: OnEvent | None = None,
    on_drift: OnDrift | None = None,
) -> tuple[nn.Module, Optimizers]:
    """Try strategies on the live ranks for some minutes; go on training with the best.

    Every rank calls this with its own model (not wrapped in DDP) and optimizer, once
    torch.distributed is initialized. All begin with rank 0's parameters, as under DDP. After it
    parameters, buffers, optimizer and random states are what they were before it; only the
    synchronization has changed: model and optimizer come back as `autosync.distribute` returns
    them. A job of one rank tries and writes nothing, and goes on under torch's DDP.

    step: `step(model, optimizer)` runs one whole iteration: forward, backward and
        `optimizer.step()`. It is run many times, so it should not advance a data loader: let it
        use one batch, or take what `batches` gives. One that adds up the gradients of several
        batches before its update runs all but the last within `with model.no_sync():`, which the
        model that it is given always has.
    optimizer: of the model, or a list of several; the step is given the same, and the same comes
        back.
    batches: this rank's stream of data, a DataLoader for instance: the step is then called as
        `step(model, optimizer, batch)`. The first 16 batches are kept during the tuning, fewer
        where a rank has fewer. The graph is recorded on each of them, and every trial runs the
        same ones in the same order, so that where the iteration depends on its input, strategies
        are compared on the same work. An iterator has moved on by what was taken; a DataLoader
        begins anew, as its shuffling has not been touched.
    minutes: of the whole tuning. Where they do not suffice to confirm a winner, DDP is kept.
    others: schedulers, scalers and the like whose state a step changes.
    batch_size: of one rank, by default the leading dimension of the model's first tensor.
    max_grad_norm, ddp_options: as for `distribute`.
    device_type: of this rank's GPU, where its own name is none of `autosync.cluster.devices`.
    settings, space: of the search; rank 0's count. The space "fsdp2", torch's `fully_shard` beside
        DDP, is tried on a copy of the model, of which each rank has its parts, beside the model's
        own values. Where sharding is the answer and no optimizer has stepped yet, the model
        comes back sharded, and its parameters are DTensors. A job that has begun to train goes on
        under torch's DDP; the next run begins with the bundle that `save` names, which the
        answer needs there.
    save: rank 0 writes the bundle there, for `autosync.distribute` in the next run.
    since: what an earlier tuning of this model measured: its bundle, or the file that its `trials`
        named. A few of its strategies are measured first, to see what has changed, and then the
        search goes on from there. Rank 0's counts.
    trials: rank 0 writes there what was measured, for `since` of a later tuning. Where the disk has
        no room for it, or for `save`, by then, a warning says so, and training goes on.
    on_event: progress, on rank 0.
    on_drift: as for `distribute`.

    Raises:
        InvalidInput: torch.distributed is not initialized; a rank has no batch; the model or an
            optimizer is distributed already; an optimizer trains what is not the model's; an
            option is none of DistributedDataParallel's; `minutes` is no time; step does not do
            what it must; `save` or `trials` cannot be written; `since` is no bundle and no file of
            trials; no space has that name, or it has uneven shares or late updates; it is `fsdp2`,
            an optimizer has stepped, and `save` says no place for the answer. On every rank.
        NotSupported: the GPU is of no known device type, and none is stated; a module is compiled,
            or sharded by FSDP or tensor parallelism; an option of DDP's contradicts every plan;
            several optimizers are to be clipped.
        SynchronizationFailed: a rank died, or is stuck in the step.
    """
    group = working_group(None)
    options = dict(ddp_options or {})

    def check() -> Space:
        check_tunable(model, given_optimizers(optimizer), others, max_grad_norm, options)
        asked = space_named(space) if isinstance(space, str) else space or Space()
        if dist.get_rank() == 0:
            check_folders(save=save, trials=trials)
            check_in_running_job(asked)
            if asked.only == "fsdp2" and save is None:
                check_untrained(given_optimizers(optimizer))
        return asked

    patience = patience_of(minutes)
    if group.size() == 1:
        check()
        unwritten = ", ".join(str(file) for file in (save, trials) if file is not None)
        if unwritten:
            warnings.warn(f"one rank tunes nothing and does not write {unwritten}", stacklevel=2)
        log.info("one rank has nothing to synchronize")
        return in_ddp(model, optimizer, max_grad_norm, None, group, options, list), optimizer
    until = time.monotonic() + 60 * minutes
    with job_control(patience) as control:
        within = control.agreed(check)
        mine = None if dist.get_rank() else since
        known = control.agreed(lambda: read_earlier(mine) if isinstance(mine, str | Path) else mine)
        place = control.from_first(save)
        control.share_values(model)
        before = take_snapshot(model, given_optimizers(optimizer), others, batches)
        job = LiveJob(
            step, model, optimizer, before, control, patience, max_grad_norm, options, device_type
        )
        with _put_back(job):
            job.batches = sampled_batches(control, batches)
            verdict = _verdict(
                job,
                batch_size,
                settings or Settings(),
                within,
                until,
                on_event,
                known,
                trials,
            )
    if save is not None and not verdict.reason and dist.get_rank() == 0:
        with warned_if_unwritten(save):
            save_bundle(verdict.answer or verdict.bundle, save)
    if verdict.reason or verdict.answer:
        message = f"tuning found no answer, so torch's DDP is used: {verdict.reason}"
        if verdict.answer is not None:
            message = why_next_run(verdict.answer, place)
        warnings.warn(message, stacklevel=2)
        log.warning(message)
    return distribute(
        model,
        optimizer,
        verdict.bundle,
        max_grad_norm=max_grad_norm,
        allow_lossy=True,  # such strategies were tried only where the space allows them
        ddp_options=options,
        on_drift=on_drift,
    )


@contextmanager
def _put_back(job: LiveJob) -> Iterator[None]:
    """However the tuning ends, the job's state is what it was, and no group of a trial is left."""
    try:
        yield
    finally:
        job.end_groups()
        job.before.restore()


def _verdict(
    job: LiveJob,
    batch_size: int | None,
    settings: Settings,
    space: Space,
    until: float,
    on_event: OnEvent | None,
    since: Bundle | EarlierTrials | None,
    keep: str | Path | None,
) -> Verdict:
    """What to go on with, the same on every rank; rank 0 searches.

    Raises:
        InvalidInput: step does not do what it must, on some rank.
        NotSupported: the GPU is of no known device type, and none is stated.
        SynchronizationFailed: a rank is lost.
    """
    control = job.control
    own_type = control.agreed(lambda: device_type_of(job.device, job.stated_device_type))
    recorded = control.agreed(lambda: record_job(job, batch_size, own_type))
    slowest = max(control.gathered(recorded.step_seconds))
    trial_seconds = control.from_first(settings.timeout_seconds)
    job.timeout = collective_timeout(own_timeout(job), slowest, trial_seconds)
    job.renew_groups()
    cluster = control.agreed(lambda: measure_cluster(job, recorded.step_seconds))
    sharing = gpu_sharing(job)
    domain = control.agreed(lambda: recorded.domain_on(cluster))
    if dist.get_rank() > 0:
        return serve(job)
    settings = with_fewer_iterations(settings, slowest, until - time.monotonic())
    sharded = space.only == "fsdp2"
    within = space if sharded else replace(space, sharded_parameters=False)  # the script must agree
    if len(job.optimizers) > 1 and not sharded:  # a divided model takes one
        within = within.undivided()
    hosts = len(cluster.nodes)
    place = f"job ({cluster.world_size} ranks on {hosts} host{'s' * (hosts > 1)})"
    pool = JobPool(job, ", ".join(filter(None, (place, sharing))), until)
    return _lead(pool, domain, within, settings, on_event or _log_event, since, keep)


def sampled_batches(control: ControlGroup, batches: Iterable[Any] | None) -> list[Any]:
    """As many on every rank: a trial's iterations belong together. None where none were given."""

    def draw() -> list[Any]:
        drawn = [] if batches is None else list(itertools.islice(batches, MOST_BATCHES))
        if batches is not None and not drawn:
            raise no_batches("batches is empty.", batches)
        return drawn

    drawn: list[Any] = control.agreed(draw)
    counts = control.gathered(len(drawn))
    if max(counts) and not min(counts):
        raise no_batches(f"rank {counts.index(0)} was given no batches, others were.", batches)
    return drawn[: min(counts)]


def no_batches(why: str, batches: object) -> InvalidInput:
    return InvalidInput(
        why,
        thing="batches",
        value=type(batches).__name__,
        remedy="Give every rank a DataLoader or an iterator with a batch at least, or none and a "
        "step that has its own.",
    )


def check_folders(**files: str | Path | None) -> None:
    """files: written once everything is measured, by the arguments that name them.

    Raises:
        InvalidInput: one of them cannot be written: it is a folder, or its folder is missing or
            read-only.
    """
    for argument, file in files.items():
        if file is None:
            continue
        path = Path(file).absolute()
        folder = path.parent
        if not folder.is_dir():
            why = f"there is no folder {str(folder)!r}"
        elif path.is_dir():
            why = "that is a folder"
        elif not os.access(folder, os.W_OK):
            why = f"nothing can be written to the folder {str(folder)!r}"
        else:
            continue
        raise InvalidInput(
            f"{argument} is {str(file)!r}, and {why}.",
            thing=argument,
            value=str(file),
            remedy="Name a file in a folder that exists and can be written to.",
        )


def own_timeout(job: LiveJob) -> timedelta:
    timeout: timedelta = working_group(None)._get_backend(job.device).options._timeout
    return timeout


def _lead(
    pool: JobPool,
    domain: Domain,
    space: Space,
    settings: Settings,
    on_event: OnEvent,
    since: Bundle | EarlierTrials | None,
    keep: str | Path | None,
) -> Verdict:
    """Rank 0's part. Whatever happens, the other ranks receive the verdict."""

    def report(kernel: str) -> None:
        on_event(TuningEvent("ranking", f"compiling {kernel}, once for this machine"))

    try:
        with compilations_told(report):
            verdict = _searched(pool, domain, space, settings, on_event, since, keep)
    except SynchronizationFailed:  # a rank is lost: no rank can go on
        raise
    except AutosyncError as error:
        verdict = Verdict(_keep_ddp(domain), pool.with_refusal(str(error)))
    except Exception as error:  # a process boundary: the training job must go on
        traceback.print_exc()
        verdict = Verdict(_keep_ddp(domain), f"{type(error).__name__}: {error}")
    pool.dismiss(verdict)
    return verdict


def _keep_ddp(domain: Domain) -> Bundle:
    return make_bundle(known_designs.ddp(domain), domain)


def _searched(
    pool: JobPool,
    domain: Domain,
    space: Space,
    settings: Settings,
    on_event: OnEvent,
    since: Bundle | EarlierTrials | None,
    keep: str | Path | None,
) -> Verdict:
    """Measures what predictions need, then tunes as the service's workers do.

    Raises:
        InvalidInput: nothing of `since` can be used here.
    """
    pool.refusal = partial(no_room_beside_values, domain)
    earlier = usable(known_from(since, domain), domain, space) if since is not None else None
    now = time.monotonic()
    probe_until = now + PROBE_SHARE * (pool.until - now)
    domain = measure_message_costs(pool, domain, settings, probe_until, on_event)
    pool.reset_ranks()
    if pool.job.device.type == "cpu":  # what a GPU does is not recorded
        domain = measure_overlap(pool, domain, settings, on_event)
    simulator = default_simulator()
    settings = with_fewer_proposals(settings, domain, space, simulator, pool.until, on_event)
    now = time.monotonic()
    budget = TimeBudget(now + SEARCH_SHARE * (pool.until - now), pool.until)
    outcome = run_tuning(
        domain,
        space,
        lambda: pool,
        MemoryStore(),
        simulator,
        settings,
        on_event,
        budget.over,
        earlier,
        on_its_devices=True,
    )
    if keep is not None:
        with warned_if_unwritten(keep), replaced_atomically(keep) as draft:
            draft.write_bytes(to_json(trials_of(outcome.ranked, domain.accumulate)).encode())
    answer = shipped_bundle(outcome, domain, pool.description)
    if answer.plan.sharding and any(one.has_begun for one in pool.job.before.optimizers):
        return Verdict(_keep_ddp(domain), answer=answer)
    return Verdict(answer)


def _log_event(event: TuningEvent) -> None:
    count = f" {event.done}/{event.total}" if event.total else ""
    log.info("%s%s: %s", event.kind, count, event.message)
