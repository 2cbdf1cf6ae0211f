"""Passes on warm worker processes: what a trial's procedure runs over (`TrialTransport`)."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from autosync.bundle import Bundle
from autosync.errors import InvalidInput, NotSupported
from autosync.trials.byte_scale import refuse_other_graph, scaled_bundle
from autosync.trials.contract import OnWait, TrialError, TrialRequest, Workload
from autosync.trials.machine import wait_until_quiet
from autosync.trials.measurement import LOAD_LIMIT, PassMeasurement
from autosync.trials.pool.machine_lock import MachineLock, WaitCancelled
from autosync.trials.pool.worker_answers import pass_measurement
from autosync.trials.pool.worker_contract import Place
from autosync.trials.pool.worker_group import WorkerGroup
from autosync.trials.shared_gpu import CudaMps
from autosync.trials.trial_failure import TrialFailed
from autosync.trials.worker.commands import RunPass

Links = Literal["loopback", "shaped", "cluster"]
"""What messages travel over: this machine's loopback, links shaped to the rates that the cluster
file states, or the cluster's own."""

QUIET_SECONDS = 15.0
"""The longest wait for outside load to pass before a pass is repeated."""


@dataclass
class WorkerTransport:
    """Starts the workers lazily, and again after a failure.

    place: where trials run, in words. places: one per rank.
    host: address of rank 0 as the others see it. links: between the workers.
    workloads: `name=package.module:function` entries registered at the workers' start.
    share_gpus: whether ranks may share a GPU. mps: runs for as long as a group of workers.
    machine_lock: shared with the other pools that measure on this machine.
    on_wait: told where another pool holds that lock for long.
    cancelled: set from another thread, it ends the trial that runs.
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
    cancelled: threading.Event = field(default_factory=threading.Event)
    closed: bool = False
    _load_may_pass: bool = True
    _group: WorkerGroup | None = None
    _unsent: Bundle | None = None
    _sharing: str = ""

    @property
    def description(self) -> str:
        """Where trials run, on what, and how ranks share it, once workers have told."""
        return ", ".join(filter(None, (self.place, self.workload.compute_words, self._sharing)))

    @property
    def swaps(self) -> bool:
        """A replay's variables are the model's, but it has no activations."""
        return self.workload.name != "replay"

    @property
    def world_size(self) -> int:
        return self.workload.domain.world_size

    @property
    def scales(self) -> tuple[float, float]:
        return self.workload.byte_scale, self.workload.time_scale

    @property
    def counts_bytes(self) -> bool:
        """Whether each node's NIC has a counter of its own: links are emulated, or every node is a
        host and gloo sends. Other traffic of such a host is counted as well."""
        if self.links != "cluster" or self._group is None:
            return self.links == "shaped"
        nodes = len(self.workload.domain.cluster.nodes)
        return self.workload.backend == "gloo" and len(set(self._group.hosts)) == nodes > 1

    def prepare(self, request: TrialRequest) -> float:
        """Start the workers where there are none, and scale the plan for them."""
        if self.closed:
            raise InvalidInput("this pool is closed.", thing="pool")
        if request.bundle.strategy.swap is not None:
            self._refuse_swapping_kernels()
        with self.machine_held():
            group = self.warm_group()
        begun = time.monotonic()
        self._unsent = self._shipped(request.bundle, group)
        return time.monotonic() - begun

    def run_pass(self, request: TrialRequest, after_load: bool) -> PassMeasurement:
        """Where this machine was loaded before, it may first become quiet, if it does so soon; a
        load that has outlasted such a wait is not waited for again until it has gone."""
        group = self.warm_group()
        command = RunPass(
            request.key,
            request.warmup,
            request.iterations,
            request.record,
            self._unsent,
            request.swap_slowdown,
        )
        self._unsent = None  # the later passes of a trial run the same plan
        with self.machine_held():
            if after_load and self._load_may_pass and self.machine_lock is not None:
                self._load_may_pass = wait_until_quiet(LOAD_LIMIT, QUIET_SECONDS, self.cancelled)
            begun = time.monotonic()
            answers = group.run_pass(command, request.timeout_seconds)
            wall_seconds = time.monotonic() - begun
        measured = pass_measurement(
            request, self.workload, group, answers, wall_seconds, self.counts_bytes
        )
        self._load_may_pass |= measured.load <= LOAD_LIMIT
        return measured

    def _refuse_swapping_kernels(self) -> None:
        """Waits that are only predicted can lengthen what is waited out, and nothing else.

        Raises:
            NotSupported: a replay runs kernels.
        """
        if not self.swaps and self.workload.compute == "kernels":
            raise NotSupported(
                "the strategy swaps activations: a replay has none, and its kernels take what they "
                "take, so that what they would wait for transfers is not measured.",
                thing="swap.budget_bytes",
                value=self.workload.compute,
                remedy="Replay with compute that is waited out (--compute waited), or tune in the "
                "running job (autosync.tune), which swaps.",
            )

    def contamination(self, measured: PassMeasurement) -> float:
        """Replayed periods are all alike: a spread is the doing of others, as load is."""
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

    def warm_group(self) -> WorkerGroup:
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
                self.cancelled,
                self.share_gpus,
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

    def pids(self) -> list[int]:
        return self._group.pids() if self._group is not None else []

    @contextmanager
    def machine_held(self) -> Iterator[None]:
        """No other pool measures on this machine meanwhile.

        Raises:
            TrialFailed: the trial was cancelled while it waited; its workers are as they were.
        """
        if self.machine_lock is None:
            yield
            return
        try:
            with self.machine_lock.held(self.cancelled, self.on_wait):
                yield
        except WaitCancelled:
            text = "the trial was cancelled while it waited for another measurement."
            raise TrialFailed(TrialError("cancelled", text), ranks_usable=True) from None

    def _shipped(self, bundle: Bundle, group: WorkerGroup) -> Bundle:
        """The bundle for the variables that the workers train."""
        if group.scaled:
            return scaled_bundle(bundle, self.workload.domain, self.workload.byte_scale)
        refuse_other_graph(bundle, self.workload.domain)
        return bundle
