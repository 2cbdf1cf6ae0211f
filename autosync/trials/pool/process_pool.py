"""A pool of worker processes: the local, testbed, command and ray launchers open it."""

import math
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

from autosync.bundle import Bundle
from autosync.cluster import MessageKind
from autosync.environment import REPEATS_VARIABLE
from autosync.errors import InvalidInput, NotSupported
from autosync.nccl_knobs import NcclKnobs, environment_of, tuner_configuration
from autosync.trials.commands import (
    Command,
    MessagesTimed,
    PassDone,
    RunPass,
    StretchesTimed,
    TimeMessages,
    TimeStretches,
)
from autosync.trials.contract import (
    OnWait,
    TrialRequest,
    TrialResult,
    Workload,
)
from autosync.trials.gpus import CudaMps
from autosync.trials.machine import wait_until_quiet
from autosync.trials.measurement import (
    LOAD_LIMIT,
    PassMeasurement,
    message_seconds,
    pass_measurement,
)
from autosync.trials.pool.machine_lock import MachineLock
from autosync.trials.pool.worker_group import A, WorkerGroup
from autosync.trials.pool.worker_process import Place
from autosync.trials.scales import refuse_other_graph, scaled_bundle, surviving_messages
from autosync.trials.trial_procedure import TrialPool

Links = Literal["loopback", "shaped", "cluster"]
"""What messages travel over: this machine's loopback, links shaped to the rates that the cluster
file states, or the cluster's own."""

QUIET_SECONDS = 15.0
"""The longest wait for outside load to pass before a pass is repeated."""
LOADED = f"waits for other processes, which take more than {LOAD_LIMIT:.0%} of this machine's cores"


REPEATS = 2
"""How often a contaminated pass is measured again, unless the environment says otherwise."""

PATIENCE = 3.0
"""Times the predicted seconds of a pass's iterations that these may take, besides the request's
timeout: a slow pass is no hung one, and predictions may be wrong."""

MESSAGES_TIMEOUT_SECONDS = 60.0


def usual_repeats() -> int:
    """AUTOSYNC_REPEATS, or REPEATS: on a machine that is never quiet, 0 saves a wait of seconds
    before a pass that is disturbed as well.

    Raises:
        InvalidInput: the variable holds no count.
    """
    given = os.environ.get(REPEATS_VARIABLE, "")
    if given and not re.fullmatch("[0-9]{1,3}", given):
        raise InvalidInput(
            f"{REPEATS_VARIABLE} is {given!r}, which is no count.",
            thing=REPEATS_VARIABLE,
            value=given,
            remedy="Give 0 to 999, or leave it out.",
        )
    return int(given) if given else REPEATS


@dataclass
class ProcessPool(TrialPool):
    """Runs trials on warm workers, started lazily and again after a failure; safe to share between
    threads.

    place: where trials run, in words. places: one per rank.
    host: address of rank 0 as the others see it. links: between the workers.
    workloads: `name=package.module:function` entries registered at the workers' start.
    share_gpus: whether ranks may share a GPU. mps: runs for as long as a group of workers.
    machine_lock: shared with the other pools that measure on this machine.
    on_wait: receives a message where another pool holds that lock for long, where the machine is
        loaded, and where a rank is slow to start.
    on_close: takes down what the launcher built for the workers.
    """

    workload: Workload
    place: str
    places: tuple[Place, ...]
    host: str
    links: Links
    workloads: tuple[str, ...] = ()
    share_gpus: bool = False
    mps: CudaMps | None = None
    machine_lock: MachineLock | None = None
    on_wait: OnWait | None = None
    on_close: Callable[[], None] | None = None
    repeats: int = field(default_factory=usual_repeats, kw_only=True)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _running: bool = field(default=False, init=False)
    _closed: bool = field(default=False, init=False)
    _load_may_pass: bool = field(default=True, init=False)
    _group: WorkerGroup | None = field(default=None, init=False)
    _unsent: Bundle | None = field(default=None, init=False)
    _sharing: str = field(default="", init=False)
    _environment: dict[str, str] = field(default_factory=dict, init=False)
    _tuner_configuration: str = field(default="", init=False)

    @property
    def description(self) -> str:
        """Where trials run, on what, and how ranks share it, once workers have said."""
        return ", ".join(filter(None, (self.place, self.workload.compute_words, self._sharing)))

    @property
    def trains(self) -> bool:
        """A replay's variables are the model's, but it has no activations."""
        return self.workload.name != "replay"

    @property
    def world_size(self) -> int:
        return self.workload.domain.world_size

    @property
    def scales(self) -> tuple[float, float]:
        """Byte scale s and time scale k."""
        return self.workload.byte_scale, self.workload.time_scale

    @property
    def shaped(self) -> bool:
        """Whether links are emulated, so that what each node's sends is known."""
        return self.links == "shaped"

    @property
    def at_cluster_rates(self) -> bool:
        """Whether messages show the cluster's links, emulated or real."""
        return self.links != "loopback"

    @property
    def busy(self) -> bool:
        """Whether a trial runs."""
        return self._running

    def run(self, request: TrialRequest) -> TrialResult:
        """Measure one strategy; a key that was run before is answered from memory."""
        with self._lock:
            self._running = True
            try:
                return super().run(request)
            finally:
                self._running = False

    def warm_up(self) -> None:
        """Start the workers now.

        Raises:
            TrialFailed: they could not start.
        """
        with self._lock, self._machine_held():
            self._warm_group()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            on_close, self.on_close = self.on_close, None
            try:
                self.reset_ranks()
            finally:
                if on_close is not None:
                    on_close()

    def __enter__(self) -> "ProcessPool":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def worker_pids(self) -> list[int]:
        return self._group.pids() if self._group is not None else []

    def time_messages(
        self, kind: MessageKind, size_bytes: int, workers: tuple[int, ...], repeats: int
    ) -> list[float]:
        """Seconds (of the workers' clocks) of each message of a kind among the ranks `workers`.
        Raises TrialFailed as `ask`."""
        command = TimeMessages(kind, size_bytes, workers, repeats)
        return message_seconds(self.ask(command, MessagesTimed, MESSAGES_TIMEOUT_SECONDS))

    def time_stretches(self, repeats: int, timeout_seconds: float) -> list[StretchesTimed]:
        """What each rank's stretches of the replay take, all ranks computing at once. Raises
        TrialFailed as `ask`."""
        return self.ask(TimeStretches(repeats), StretchesTimed, timeout_seconds)

    def ask(self, command: Command, answered_by: type[A], timeout_seconds: float) -> list[A]:
        """What every rank answers to one command that is no trial; see `trials.commands`.

        Raises:
            TrialFailed: a worker failed or hung.
        """
        with self._lock:
            try:
                with self._machine_held():
                    return self._living_group().ask(command, answered_by, timeout_seconds)
            except BaseException:  # the ranks may still be at work on it
                self.reset_ranks()
                raise

    def prepare(self, request: TrialRequest) -> float:
        """Start the workers where there are none, or none with the environment that the strategy
        needs, and scale the plan for them."""
        if self._closed:
            raise InvalidInput("this pool is closed.", thing="pool")
        for entry in request.bundle.strategy.extensions:
            if entry.slows_compute and not self.trains and self.workload.compute == "kernels":
                raise _kernels_do_not_wait(entry.key)
        knobs = request.bundle.strategy.extension(NcclKnobs)
        own_groups = request.bundle.plan.engine == "autosync"
        environment = environment_of(knobs, own_groups=own_groups) if knobs else {}
        tuner = tuner_configuration(knobs) if knobs else ""
        if (environment, tuner) != (self._environment, self._tuner_configuration):
            self.reset_ranks()  # NCCL reads both once a process
            self._environment, self._tuner_configuration = environment, tuner
        with self._machine_held():
            group = self._living_group()
        begun = time.monotonic()
        self._unsent = self._shipped(request.bundle, group)
        return time.monotonic() - begun

    def run_pass(self, request: TrialRequest, after_load: bool) -> PassMeasurement:
        """Where this machine was loaded before, it may first become quiet, if it does so soon; a
        load that has outlasted such a wait is not waited for again until it has gone."""
        group = self._warm_group()
        command = RunPass(
            request.key,
            request.warmup,
            request.iterations,
            request.record,
            self._unsent,
            request.compute_slowdown,
        )
        self._unsent = None  # the later passes of a trial run the same plan
        with self._machine_held():
            if after_load and self._load_may_pass and self.machine_lock is not None:
                if self.on_wait is not None:
                    self.on_wait(LOADED)
                self._load_may_pass = wait_until_quiet(LOAD_LIMIT, QUIET_SECONDS)
            begun = time.monotonic()
            answers = group.ask(command, PassDone, self.pass_timeout(request))
            wall_seconds = time.monotonic() - begun
        measured = pass_measurement(
            request,
            answers,
            wall_seconds,
            time_scale=self.workload.time_scale,
            byte_scale=self.workload.byte_scale,
            plan_index=self._plan_index(request, group),
            nics=self._nics(group),
            versions=group.versions,
        )
        self._load_may_pass |= measured.load <= LOAD_LIMIT
        return measured

    def pass_timeout(self, request: TrialRequest) -> float:
        """Seconds within which every rank must answer a pass. At a time scale k its iterations
        really take k times what is predicted."""
        if not math.isfinite(request.expected_seconds):
            return request.timeout_seconds
        iterations = request.warmup + request.iterations
        expected_seconds = iterations * request.expected_seconds * self.workload.time_scale
        return request.timeout_seconds + PATIENCE * expected_seconds

    def _plan_index(self, request: TrialRequest, group: WorkerGroup) -> tuple[int, ...] | None:
        """See `pass_measurement`; only a recorded timeline needs it."""
        if not (request.record and group.scaled):
            return None
        graph = self.workload.domain.graph
        return surviving_messages(request.bundle.plan, graph, self.workload.byte_scale)

    def _nics(self, group: WorkerGroup) -> tuple[int, ...]:
        """The node of each rank, where each node's NIC has a counter of its own: links are
        emulated, or every node is a host and gloo sends. Other traffic of such a host is counted
        as well."""
        nodes = len(self.workload.domain.cluster.nodes)
        by_gloo = self.links == "cluster" and self.workload.backend == "gloo"
        if self.shaped or (by_gloo and len(set(group.hosts)) == nodes > 1):
            return tuple(place.node for place in self.places)
        return ()

    def contamination(self, measured: PassMeasurement) -> float:
        """Replayed iterations take equally long: others cause a spread, as they cause load."""
        return measured.disturbance

    def reset_ranks(self) -> None:
        """Kill the workers; the next trial starts others."""
        group, self._group = self._group, None
        if group is not None:
            group.begin_kill()
        try:
            if self.mps is not None:  # before ranks are waited for that are within its kernels
                self.mps.stop()
        finally:
            if group is not None:
                group.kill()

    def _living_group(self) -> WorkerGroup:
        """As `_warm_group`, between trials: what has ended a worker since the last one, a lack of
        memory for instance, is not the next one's."""
        if self._group is not None and self._group.has_lost_a_rank():
            self.reset_ranks()
        return self._warm_group()

    def _warm_group(self) -> WorkerGroup:
        """The workers, started where there are none.

        Raises:
            TrialFailed: a worker could not start.
        """
        if self._group is None:
            self._group = WorkerGroup(
                self.workload,
                self.places,
                self.host,
                self.workloads,
                self.share_gpus,
                self._environment,
                self._tuner_configuration,
                self.on_wait,
            )
            try:
                if self.mps is not None:
                    self.mps.start()
                self._group.start()
            except BaseException:  # whatever it was, half a group is none
                self.reset_ranks()
                raise
            self._sharing = self._group.sharing
        return self._group

    def _machine_held(self) -> AbstractContextManager[None]:
        """No other pool measures on this machine meanwhile."""
        return self.machine_lock.held(self.on_wait) if self.machine_lock else nullcontext()

    def _shipped(self, bundle: Bundle, group: WorkerGroup) -> Bundle:
        """The bundle for the variables that the workers train."""
        if group.scaled:
            return scaled_bundle(bundle, self.workload.domain, self.workload.byte_scale)
        refuse_other_graph(bundle, self.workload.domain)
        return bundle


def _kernels_do_not_wait(key: str) -> NotSupported:
    """Predicted waits of an extension can lengthen compute that sleeps, not kernels."""
    return NotSupported(
        f"the strategy has {key!r}, which slows compute: a replay does without it, and its kernels "
        "take what they take, so that what they would wait for is not measured.",
        thing=key,
        value="kernels",
        remedy="Replay with --compute waited, or tune in the running job (autosync.tune).",
    )
