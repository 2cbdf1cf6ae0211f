"""ProcessPool: the Pool protocol over worker processes, whatever prefix starts them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal

import numpy as np

from autosync.bundle import Bundle
from autosync.documents import adapter
from autosync.errors import AutosyncError, InvalidInput
from autosync.trials.byte_scale import refuse_other_graph, scaled_bundle
from autosync.trials.contract import TrialError, TrialRequest, TrialResult, Workload
from autosync.trials.machine import wait_until_quiet
from autosync.trials.measurement import (
    LOAD_LIMIT,
    Measurement,
    measurement,
    message_seconds,
    spread,
    until_clean,
)
from autosync.trials.pool.machine_lock import GivenUp, MachineLock
from autosync.trials.pool.worker_group import Failed, WorkerGroup
from autosync.trials.pool.worker_process import Place

PASS_TOLERANCE = 0.05
"""Passes whose medians differ by more are followed by one more."""

REPEATS = 2

Links = Literal["loopback", "shaped", "cluster"]
"""What messages travel over: this machine's loopback, links shaped to the rates that the cluster
file states, or the cluster's own."""

QUIET_SECONDS = 15.0
"""The longest wait for outside load to pass before a pass is repeated."""


@dataclass
class ProcessPool:
    """Runs trials one at a time on warm workers; starts them lazily, and again after a failure.

    place: where trials run, in words. placements: one per rank.
    host: address of rank 0 as the others see it. links: between the workers.
    workloads: `name=package.module:function` entries registered at the workers' start.
    repeats: how often a contaminated pass is measured again.
    turns: that the pool takes with others, where it measures on this machine.
    on_close: takes down what the launcher built for the workers.
    repeated: passes so far that were measured again because others disturbed them.
    """

    workload: Workload
    place: str
    placements: tuple[Place, ...]
    host: str
    links: Links
    workloads: tuple[str, ...] = ()
    repeats: int = REPEATS
    turns: MachineLock | None = None
    on_close: Callable[[], None] | None = None
    repeated: int = 0
    _crew: WorkerGroup | None = None
    _known: dict[str, TrialResult] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ids: "count[int]" = field(default_factory=lambda: count(1))
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _running: bool = False
    _closed: bool = False

    @property
    def description(self) -> str:
        """Where trials run, and on what; in words that reports repeat."""
        return ", ".join(filter(None, (self.place, self.workload.compute_words)))

    @property
    def shaped(self) -> bool:
        """Whether links are emulated, so that what each node's sends is known."""
        return self.links == "shaped"

    @property
    def at_cluster_rates(self) -> bool:
        """Whether messages show the cluster's links, emulated or real."""
        return self.links != "loopback"

    @property
    def counts_bytes(self) -> bool:
        """Whether each node's NIC has a counter of its own: links are emulated, or every node is a
        host and gloo sends. Other traffic of such a host is counted as well."""
        if self.links != "cluster" or self._crew is None:
            return self.shaped
        nodes = len(self.workload.domain.cluster.nodes)
        return self.workload.backend == "gloo" and len(set(self._crew.hosts)) == nodes > 1

    def run(self, request: TrialRequest) -> TrialResult:
        """Measure one strategy; a key that was run before is answered from memory."""
        with self._lock:
            if request.key in self._known:
                return self._known[request.key]
            self._cancelled.clear()
            self._running = True
            try:
                result = self._run(request)
            finally:
                self._running = False
            if result.error is None or result.error.kind != "cancelled":
                self._known[request.key] = result
            return result

    def warm_up(self) -> None:
        """Start the workers now.

        Raises:
            Failed: they could not start.
        """
        with self._lock:
            self._cancelled.clear()
            with self._turn():
                self._warm_crew()

    @property
    def busy(self) -> bool:
        """Whether a trial runs."""
        return self._running

    def cancel(self) -> None:
        """Stop the trial that runs now, from another thread; its workers die with it."""
        if self._running:
            self._cancelled.set()

    def close(self) -> None:
        self.cancel()
        with self._lock:
            self._drop_crew()
            self._closed = True
            if self.on_close is not None:
                self.on_close()
                self.on_close = None

    def __enter__(self) -> "ProcessPool":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def worker_pids(self) -> list[int]:
        return self._crew.pids() if self._crew is not None else []

    def time_messages(
        self, kind: str, size_bytes: int, workers: tuple[int, ...], repeats: int
    ) -> list[float]:
        """Seconds (of the workers' clocks) of each message of a kind among the ranks `workers`.
        Raises Failed as `ask`."""
        command = {"kind": kind, "bytes": size_bytes, "workers": workers, "repeats": repeats}
        return message_seconds(self.ask("message", command, timeout_seconds=60.0))

    def ask(
        self, operation: str, fields: dict[str, Any], timeout_seconds: float
    ) -> list[dict[str, Any]]:
        """What every rank answers to one command that is no trial; see `worker`.

        Raises:
            Failed: a worker failed or hung.
        """
        with self._lock:
            self._cancelled.clear()
            command = {**fields, "op": operation, "id": next(self._ids)}
            try:
                with self._turn():
                    return self._warm_crew().ask(command, timeout_seconds)
            except BaseException:  # its ranks may be at work on it still
                self._drop_crew()
                raise

    def _run(self, request: TrialRequest) -> TrialResult:
        try:
            self._refuse_misfit(request)
            measured, prepare_seconds = self._passes(request)
        except Failed as failure:
            if not failure.warm:
                self._drop_crew()
            return self._failed(request, failure.error)
        except AutosyncError as error:
            return self._failed(request, TrialError("refused", str(error)))
        except BaseException:  # its ranks may be at work on it still
            self._drop_crew()
            raise
        return self._succeeded(request, measured, prepare_seconds)

    def _refuse_misfit(self, request: TrialRequest) -> None:
        if self._closed:
            raise InvalidInput("this pool is closed.", thing="pool")
        world = self.workload.domain.world_size
        if request.bundle.plan.world_size != world:
            raise InvalidInput(
                f"the plan is for {request.bundle.plan.world_size} ranks, the cluster has {world}.",
                thing="plan.shares",
                value=request.bundle.plan.world_size,
                remedy="This strategy belongs to another cluster.",
            )
        if request.warmup < 0 or request.iterations < 1 or request.passes < 1:
            raise InvalidInput(
                f"a trial of {request.passes} passes with {request.iterations} iterations "
                "measures nothing.",
                thing="iterations",
                value=request.iterations,
            )

    def _passes(self, request: TrialRequest) -> tuple[list[Measurement], float]:
        """All passes, and one more where they disagree; and the seconds that the workers' document
        took before them."""
        with self._turn():
            crew = self._warm_crew()
        begun = time.monotonic()
        crew.prepare(adapter(Bundle).dump_json(self._shipped(request.bundle, crew)).decode())
        prepare_seconds = time.monotonic() - begun
        measured = [self._clean_pass(request, crew) for _ in range(request.passes)]
        medians = [float(np.median(one.iteration_seconds)) for one in measured]
        if max(medians) > (1 + PASS_TOLERANCE) * min(medians):
            measured.append(self._clean_pass(request, crew))
        return measured, prepare_seconds

    def _shipped(self, bundle: Bundle, crew: WorkerGroup) -> Bundle:
        """The bundle for the variables that the workers train."""
        if crew.scaled:
            return scaled_bundle(bundle, self.workload.domain, self.workload.byte_scale)
        refuse_other_graph(bundle, self.workload.domain)
        return bundle

    def _clean_pass(self, request: TrialRequest, crew: WorkerGroup) -> Measurement:
        """One pass, repeated while it is contaminated; the least contaminated one."""

        def measure(before: Measurement | None) -> Measurement:
            return self._pass(request, crew, after_load=before is not None and before.loaded)

        attempts = until_clean(measure, self.repeats)
        self.repeated += len(attempts) > 1
        return min(attempts, key=lambda one: one.contamination)

    def _pass(
        self, request: TrialRequest, crew: WorkerGroup, after_load: bool = False
    ) -> Measurement:
        """after_load: what loaded this machine shall pass first, if it does so soon."""
        command = {
            "op": "trial",
            "id": next(self._ids),
            "key": request.key,
            "warmup": request.warmup,
            "iterations": request.iterations,
            "record": request.record,
        }
        with self._turn():
            if after_load and self.turns is not None:
                wait_until_quiet(LOAD_LIMIT, QUIET_SECONDS, self._cancelled)
            begun = time.monotonic()
            answers = crew.run_plan(command, request.timeout_seconds)
            wall_seconds = time.monotonic() - begun
        return measurement(request, self.workload, crew, answers, wall_seconds)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """No other pool measures on this machine meanwhile.

        Raises:
            Failed: the trial was cancelled while it waited; its workers are as they were.
        """
        if self.turns is None:
            yield
            return
        try:
            with self.turns.taken(self._cancelled):
                yield
        except GivenUp:
            error = TrialError("cancelled", "the trial was cancelled while it waited its turn.")
            raise Failed(error, warm=True) from None

    def _warm_crew(self) -> WorkerGroup:
        if self._crew is None:
            crew = WorkerGroup(
                self.workload, self.placements, self.host, self.workloads, self._cancelled
            )
            try:
                crew.start()
            except BaseException:  # whatever it was, half a crew is none
                crew.kill()
                raise
            self._crew = crew
        return self._crew

    def _drop_crew(self) -> None:
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.kill()

    def _failed(self, request: TrialRequest, error: TrialError) -> TrialResult:
        return TrialResult(
            key=request.key,
            iteration_seconds=(),
            step_seconds=None,
            spread=None,
            error=error,
            launcher=self.description,
            byte_scale=self.workload.byte_scale,
            time_scale=self.workload.time_scale,
        )

    def _succeeded(
        self, request: TrialRequest, measured: list[Measurement], prepare_seconds: float
    ) -> TrialResult:
        periods = tuple(period for one in measured for period in one.iteration_seconds)
        overhead_seconds = prepare_seconds + sum(one.overhead_seconds for one in measured)
        return replace(
            self._failed(request, TrialError("refused", "")),
            error=None,
            iteration_seconds=periods,
            step_seconds=float(np.median(periods)),
            spread=spread(periods),
            load=max(one.load for one in measured),
            overhead_seconds=overhead_seconds / len(measured),
            peak_memory_bytes=max(one.peak_memory_bytes for one in measured),
            sent_bytes=measured[-1].sent_bytes if self.counts_bytes else (),
            versions=self._crew.versions if self._crew is not None else (),
            timeline=min(measured, key=lambda one: one.contamination).timeline,
        )
