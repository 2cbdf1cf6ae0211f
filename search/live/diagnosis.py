"""`autosync.diagnose`: where the seconds of a running job's iterations go, and what could be
gained."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.profiler import record_function
from torch.utils.data import DataLoader

from autosync.atomic_write import replaced_atomically, warned_if_unwritten
from autosync.bundle import make_bundle
from autosync.diagnosis.breakdown import break_down, with_parameters
from autosync.diagnosis.job_facts import facts_of, unwrapped, wrapping_of
from autosync.diagnosis.mistakes import find_mistakes
from autosync.diagnosis.rank_trace import INPUT_MARK, RankTrace
from autosync.diagnosis.recording import counted_passes, timed_iterations, traced_iterations
from autosync.diagnosis.report import Attainable, Diagnosis, LinkRate
from autosync.domain import Domain
from autosync.errors import AutosyncError, InvalidInput
from autosync.runtime.attached_models import check_plain
from autosync.runtime.hooks.optimizer_coverage import given_optimizers
from autosync.runtime.hooks.torch_compile import is_compiled
from autosync.runtime.transport.process_groups import working_group
from autosync.search.designs import known_designs as designs
from autosync.search.live.live_tuning import check_folders, no_batches, own_timeout
from autosync.search.live.message_costs import measure_message_costs
from autosync.search.live.time_budget import collective_timeout
from autosync.search.loop.design_candidates import known_designs
from autosync.search.loop.outcome import DDP
from autosync.search.loop.ranking import SHORTLIST_SIZE, materialize, rank
from autosync.search.loop.settings import Settings
from autosync.search.space import Space
from autosync.simulator.learned.checkpoint import default_simulator
from autosync.simulator.limit import iteration_limit
from autosync.simulator.memory.memory_check import fitting_rows
from autosync.trials.live.job import (
    ControlGroup,
    LiveJob,
    Step,
    check_stateful,
    job_control,
    takes_no_sync,
)
from autosync.trials.live.job_cluster import device_type_of, measure_cluster
from autosync.trials.live.job_pool import JobPool, Verdict, serve
from autosync.trials.live.snapshot import Stateful, take_snapshot
from autosync.trials.live.step_graph import record_job

log = logging.getLogger("autosync")

WARM_UP = 2  # before the iteration that counts passes
ITERATIONS = 10
PROPOSALS = 2_000
"""Ranked for what the best strategy would reach."""

PROBE_SECONDS = 60.0
"""For what messages cost, at most."""

FORMATS: dict[str, Callable[[Diagnosis], str]] = {
    ".json": Diagnosis.to_json,
    ".html": Diagnosis.to_html,
    ".txt": Diagnosis.to_text,
}

PATIENCE = timedelta(minutes=10)
"""How long ranks wait for each other, rank 0's predictions included."""


def diagnose(
    step: Step,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    batches: Iterable[Any] | None = None,
    iterations: int = ITERATIONS,
    others: Sequence[Stateful] = (),
    batch_size: int | None = None,
    device_type: str | None = None,
    predict: bool = True,
    save: str | Path | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Where the seconds of this job's iterations go, and what is attainable here.

    Every rank calls this once torch.distributed is initialized, with its model as it trains: under
    torch's DistributedDataParallel, sharded by `fully_shard`, or bare. Nothing is changed:
    parameters, buffers, gradients, optimizer and random states come back bit for bit. It takes one
    to five minutes.

    step: `step(model, optimizer)` runs one whole iteration on the model that it is given, or
        `step(model, optimizer, batch)` with `batches`. Predictions run it on the bare model, too.
        Under DDP and on a bare model it may call `model.no_sync()`, as for `autosync.tune`.
    batches: this rank's data. Batches are fetched within the iterations, so that the time that
        ranks wait for input shows. An iterator has moved on afterwards.
    iterations: timed without the profiler, and as many with it.
    others, batch_size, device_type: as for `autosync.tune`.
    predict: also predict the limit and the best strategy: needs a model that is bare or under DDP.
    save: rank 0 writes the page there, by the name's end: .txt, .html or .json.
    on_progress: called on rank 0 with what begins; logged by default.

    Returns: the same diagnosis on every rank.

    Raises:
        InvalidInput: the model follows a plan of AutoSync's; the step fails on a rank; `batches` is
            empty, or only some ranks have them; one of `others` has no state to put back;
            `iterations` is below 1; `save` ends in none of the three, or cannot be written.
        SynchronizationFailed: a rank died.
    """
    group = working_group(None)
    if group.size() < 2:
        raise InvalidInput(
            "the job has one rank: nothing is synchronized.",
            thing="world size",
            value=1,
            remedy="Start it on several: torchrun --nproc-per-node 2 train.py.",
        )
    optimizers = given_optimizers(optimizer)
    report = (on_progress or log.info) if dist.get_rank() == 0 else lambda text: None

    def check() -> None:
        check_plain(unwrapped(model), optimizers)
        check_stateful(others)
        if iterations < 1:
            raise InvalidInput(
                f"iterations is {iterations}: nothing would be timed.",
                thing="iterations",
                value=iterations,
                remedy="Give 1 or more.",
            )
        if save is not None and Path(save).suffix not in FORMATS:
            raise InvalidInput(
                f"{str(save)!r} names no format of a diagnosis.",
                thing="save",
                value=str(save),
                remedy=f"End it in one of {', '.join(FORMATS)}.",
            )
        if dist.get_rank() == 0:
            check_folders(save=save)

    with job_control(PATIENCE) as control:
        control.agreed(check)
        before = take_snapshot(model, optimizers, others, batches)
        try:
            fetched = _stream_of(control, batches)
            with takes_no_sync(model):
                measured = _measured(control, step, model, optimizer, fetched, iterations, report)
            before.restore()
            notes, attainable, links = list(measured.notes), None, ()
            if (reason := _no_prediction(model, predict)) is not None:
                notes += [reason] if reason else []
            else:
                job = LiveJob(
                    step,
                    unwrapped(model),
                    optimizer,
                    take_snapshot(unwrapped(model), optimizers, others),
                    control,
                    PATIENCE,
                    ddp_options={"find_unused_parameters": True},  # as the job may do
                    stated_device_type=device_type,
                )
                try:
                    job.batches = [] if fetched is None else [fetched.latest]
                    attainable, links = _predicted(job, batch_size, measured, report)
                except AutosyncError as error:  # agreed: on every rank
                    notes.append(f"Nothing is predicted: {error}")
                finally:
                    job.end_groups()
                    job.before.restore()
        finally:
            before.restore()
        found = control.from_first(
            replace(measured, attainable=attainable, links=links, notes=tuple(notes))
        )
    assert isinstance(found, Diagnosis)
    if dist.get_rank() == 0:
        log.info("%s", found.verdict)
        if save is not None:
            with warned_if_unwritten(save), replaced_atomically(save) as draft:
                draft.write_text(FORMATS[Path(save).suffix](found), encoding="utf-8")
    return found


def _measured(
    control: ControlGroup,
    step: Step,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    fetched: "_Batches | None",
    iterations: int,
    report: Callable[[str], None],
) -> Diagnosis:
    """Without a prediction; the same on every rank."""
    device = next(model.parameters()).device

    def run(number: int) -> None:
        if fetched is None:
            step(model, optimizer)
        else:
            with record_function(INPUT_MARK):
                batch = fetched.next()
            step(model, optimizer, batch)

    def warm_up() -> None:
        """While the rank was busy, workers have fetched ahead what iterations would wait for."""
        if fetched is not None:
            fetched.drop_ahead()
        run(0)

    def count_passes() -> int:
        with counted_passes(model) as passes:
            warm_up()
        return passes[0]

    def traced() -> RankTrace:
        return traced_iterations(run, iterations, device, warm_up)

    report(f"timing {iterations} iterations as they run")
    control.agreed(lambda: timed_iterations(run, WARM_UP, device))
    passes = control.agreed(count_passes)
    seconds = control.gathered(control.agreed(lambda: timed_iterations(run, iterations, device)))
    report(f"recording {iterations} iterations under torch.profiler")
    traces = control.gathered(control.agreed(traced))
    facts = control.gathered(control.agreed(lambda: facts_of(model)))
    breakdown = replace(break_down(traces), backend=facts[0].backend)
    if (ddp := facts[0].ddp) is not None:
        named = with_parameters(breakdown.collectives, ddp.bucket_bytes, ddp.bucket_parameters)
        breakdown = replace(breakdown, collectives=named)
    step_seconds = max(seconds)
    notes = []
    slower = breakdown.iteration_seconds / step_seconds - 1
    if slower > PROFILER_SHARE:
        notes.append(
            f"Under the profiler an iteration took {slower:.0%} longer; the shares are of that one."
        )
    return Diagnosis(
        len({trace.host for trace in traces}),
        wrapping_of(model),
        facts[0].device,
        step_seconds,
        breakdown,
        find_mistakes(breakdown, facts, passes),
        notes=tuple(notes),
    )


PROFILER_SHARE = 0.15
"""By how much longer an iteration may take under the profiler before the page says so."""


class _Batches:
    """An endless stream of a rank's batches: where an iterable ends, it begins anew.

    Raises:
        InvalidInput: there is none.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self.latest: Any = None
        self._stream: Iterator[Any] = iter(batches)
        self._stream = chain([self.next()], self._stream)

    def next(self) -> Any:
        """The next batch, which then is the latest."""
        for _ in range(2):
            for batch in self._stream:
                self.latest = batch
                return batch
            self._stream = iter(self._batches)
        raise InvalidInput(
            "batches is empty, or an iterator that has ended.",
            thing="batches",
            value=type(self._batches).__name__,
            remedy="Give every rank a DataLoader, or an iterator with enough batches.",
        )

    def drop_ahead(self) -> None:
        """As many batches as workers of a DataLoader fetch ahead, never beyond the epoch; none of
        other iterables."""
        if isinstance(self._batches, DataLoader):
            ahead = self._batches.num_workers * (self._batches.prefetch_factor or 0)
            for _ in islice(self._stream, ahead):
                pass


def _stream_of(control: ControlGroup, batches: Iterable[Any] | None) -> _Batches | None:
    """None where no rank was given batches.

    Raises:
        InvalidInput: a rank has no batch, or was given none where others were.
    """
    fetched: _Batches | None = control.agreed(
        lambda: None if batches is None else _Batches(batches)
    )
    given = control.gathered(fetched is not None)
    if any(given) and not all(given):
        raise no_batches(f"rank {given.index(False)} was given no batches, others were.", batches)
    return fetched


def _no_prediction(model: nn.Module, predict: bool) -> str | None:
    """Why nothing is predicted; empty where nobody asked; None where it can be."""
    if not predict:
        return ""
    if wrapping_of(unwrapped(model)) != "none":
        return (
            "Nothing is predicted for a model that is sharded, or with DDP around its modules: the "
            "limit is what is left where all communication is hidden."
        )
    if any(is_compiled(module) for module in model.modules()) or is_compiled(model):
        return (
            "Nothing is predicted for a compiled model, whose modules cannot be timed: the limit "
            "is what is left where all communication is hidden."
        )
    return None


def _predicted(
    job: LiveJob, batch_size: int | None, measured: Diagnosis, report: Callable[[str], None]
) -> tuple[Attainable | None, Any]:
    """What is attainable, on rank 0; the measured rates of links, on every rank."""
    control = job.control
    report("recording the model's operations, and measuring links")
    own_type = _agreed(control, lambda: device_type_of(job.device, job.stated_device_type))
    recorded = _agreed(control, lambda: record_job(job, batch_size, own_type))
    slowest = max(control.gathered(recorded.step_seconds))
    job.timeout = collective_timeout(own_timeout(job), slowest, Settings().timeout_seconds)
    job.renew_groups()
    cluster = _agreed(control, lambda: measure_cluster(job, recorded.step_seconds))
    rates = [LinkRate("hosts", min(n.bandwidth_gbps for n in cluster.nodes))]
    inside = [n.intra_bandwidth_gbps for n in cluster.nodes if n.intra_bandwidth_gbps]
    links = (rates if len(cluster.nodes) > 1 else []) + (
        [LinkRate("ranks of a host", min(inside))] if inside else []
    )
    domain = _agreed(control, lambda: recorded.domain_on(cluster))
    apart = job.batches or job.accumulate > 1  # else in the first operation, as a part of the step
    input_seconds = measured.input_seconds if apart else 0.0
    report("measuring what messages cost, a minute at the most")
    if dist.get_rank() > 0:
        serve(job)
        return _agreed(control, lambda: None), tuple(links)

    def attainable() -> Attainable:
        pool = JobPool(job, "job")
        until = pool.clock() + PROBE_SECONDS
        try:
            probed = measure_message_costs(pool, domain, Settings(), until, lambda event: None)
        finally:
            pool.dismiss(Verdict(make_bundle(designs.ddp(domain), domain)))
        report(f"ranking {PROPOSALS:,} strategies by prediction")
        return attainable_in(probed, input_seconds)

    found: Attainable | None = _agreed(control, attainable)  # as the others, once dismissed
    return found, tuple(links)


def _agreed(control: ControlGroup, task: Callable[[], Any]) -> Any:
    """As `ControlGroup.agreed`; what a task raises is an AutosyncError on its own rank, too, so
    that all ranks go on without a prediction."""
    try:
        return control.agreed(task)
    except AutosyncError:
        raise
    except Exception as error:  # of any type: the step is the user's own
        text = f"{type(error).__name__}: {error}"
        raise InvalidInput(text, thing="prediction", value=text) from error


def attainable_in(domain: Domain, input_seconds: float = 0.0) -> Attainable:
    """The limit of a domain, and the best by prediction of designs and sampled strategies that fit
    the devices' memory; torch's DDP in any case.

    input_seconds: of the slowest rank's iteration, beside what the domain has. No strategy shortens
        them; the limit takes it that messages travel meanwhile.
    """
    simulator = default_simulator()
    space = Space(sharded_parameters=False)
    known = known_designs(domain, space, simulator)
    sampled = rank(domain, space, simulator, PROPOSALS, 0, SHORTLIST_SIZE)
    ddp = next(each.predicted_seconds for each in known if each.origin == DDP)
    best = min(known, key=lambda each: each.predicted_seconds)
    limit = iteration_limit(domain)
    name, seconds = best.origin, best.predicted_seconds
    fitting = fitting_rows(domain, materialize(sampled, domain, space)).tolist()
    if fitting and sampled.seconds[fitting[0]] < seconds:
        name = f"a sampled strategy ({sampled.index[fitting[0]]})"
        seconds = float(sampled.seconds[fitting[0]])
    busy = domain.accumulate * limit.compute_seconds + input_seconds
    tightest = "compute and input" if input_seconds and busy >= limit.seconds else limit.tightest
    seconds, ddp, least = seconds + input_seconds, ddp + input_seconds, max(limit.seconds, busy)
    return Attainable(least, tightest, seconds, name, ddp, simulator.name)
