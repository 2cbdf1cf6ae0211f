"""One rank's part in trials: joining the group, running iterations, measuring them."""

import gc
import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from autosync.bundle import Bundle
from autosync.documents import from_data, from_json
from autosync.errors import AutosyncError, InvalidInput
from autosync.trials.attach import Attached, KeptGroups, attach, replica_digest
from autosync.trials.collectives import timed_messages
from autosync.trials.contract import Workload
from autosync.trials.job import Job, builders, find_builder
from autosync.trials.machine import (
    cpu_ticks,
    host_id,
    interface_towards,
    network_bytes,
    peak_memory_bytes,
    reset_peak_memory,
    software_versions,
)
from autosync.trials.recording import Recording
from autosync.trials.replay import sharpen_timer

GROUP_TIMEOUT = timedelta(minutes=30)
"""Longer than any trial: the launcher, which knows a trial's timeout, kills one that hangs."""


class Rank:
    """State of a worker between commands."""

    def __init__(self, workloads: list[str]) -> None:
        self._workloads = workloads
        self._workload: Workload | None = None
        self._job: Job | None = None
        self._rank = 0
        self._store: Store | None = None
        self._groups = KeptGroups()
        self._bundle: Bundle | None = None
        self._attached: Attached | None = None

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        """The answer to one command.

        Raises:
            InvalidInput: there is no such command.
        """
        match command["op"]:
            case "start":
                return self.start(command)
            case "join":
                return self.join(command)
            case "trial":
                return self.trial(command)
            case "message":
                return timed_messages(self._rank, command)
        raise InvalidInput(f"no command {command['op']!r}.", thing="op", value=command["op"])

    def start(self, command: dict[str, Any]) -> dict[str, Any]:
        """Build the job; rank 0 opens the store where the ranks meet."""
        torch.set_num_threads(1)
        sharpen_timer()
        self._rank = command["rank"]
        self._workload = from_data(Workload, command["workload"], "workload")
        build = find_builder(self._workload.name, builders(self._workloads))
        self._job = build(self._workload, self._rank)
        port = 0
        if self._rank == 0:
            store = TCPStore(
                command["host"], 0, is_master=True, wait_for_workers=False, timeout=GROUP_TIMEOUT
            )
            self._store, port = store, store.port
        return {"reply": "store", "port": port, "scaled": self._job.scaled}

    def join(self, command: dict[str, Any]) -> dict[str, Any]:
        world = command["world"]
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            os.environ["GLOO_SOCKET_IFNAME"] = interface_towards(command["host"])
        store = self._store or TCPStore(
            command["host"], command["port"], is_master=False, timeout=GROUP_TIMEOUT
        )
        dist.init_process_group(
            "gloo", store=store, rank=self._rank, world_size=world, timeout=GROUP_TIMEOUT
        )
        dist.barrier()
        gc.freeze()  # what start-up left behind need not be looked through between iterations
        return {
            "reply": "ready",
            "host": host_id(),
            "versions": software_versions(),
        }

    def trial(self, command: dict[str, Any]) -> dict[str, Any]:
        """Attach, warm up, measure, detach; `settle` follows what goes wrong while measuring."""
        workload, job = self._workload, self._job
        if workload is None or job is None:
            raise InvalidInput("a trial came before the worker was started.", thing="op")
        if "bundle" in command:  # the later passes of a trial run the same plan
            self._bundle = from_json(Bundle, command["bundle"], "bundle")
        bundle = self._bundle
        if bundle is None:
            raise InvalidInput("a trial came without a plan.", thing="bundle")
        job.begin(command["key"], bundle)
        recording = Recording() if command["record"] else None
        warmup = command["warmup"]
        reset_peak_memory()
        try:
            self._attached = attach(
                job.model,
                job.optimizer,
                bundle,
                workload.byte_scale,
                self._groups,
                recording.trace if recording else None,
            )
        except AutosyncError:
            self._groups.close()  # a refused plan may have left them half connected
            raise
        measured = _measure(job, self._attached, warmup, command["iterations"], recording)
        self.settle()
        return {
            "reply": "trial",
            "id": command["id"],
            "peak_memory_bytes": peak_memory_bytes(),
            "digest": replica_digest(job.model),
            "recording": recording and recording.as_data(bundle.plan.engine, warmup),
            **measured,
        }

    def settle(self) -> None:
        """Take the plan off. After a failure this comes when it has been answered: ranks that did
        not fail never meet it here, and the launcher ends the wait."""
        if self._attached is None or self._job is None:
            return
        self._attached.detach()
        self._attached = None
        self._job.optimizer.zero_grad(set_to_none=True)


def _measure(
    job: Job, attached: Attached, warmup: int, iterations: int, recording: Recording | None
) -> dict[str, Any]:
    """Forward starts of all iterations on `time.monotonic()`, and one after the last; when the
    last synchronization ended; CPU time and bytes from the first measured iteration to there.

    Ranks need not meet before: periods count from the latest start of an iteration."""
    starts = []
    gc.disable()  # a collection in the middle of an iteration is nobody's communication time
    for iteration in range(warmup + iterations):
        if iteration == warmup:
            begun = (time.process_time(), cpu_ticks(), network_bytes())
        starts.append(time.monotonic())
        job.optimizer.zero_grad(set_to_none=True)
        loss = job.loss(attached.model)
        if recording:
            recording.forwards.append(time.monotonic())
        loss.backward()
        if recording:
            recording.backwards.append(time.monotonic())
        job.optimizer.step()
    starts.append(time.monotonic())
    attached.flush()
    finished = time.monotonic()
    ended = (time.process_time(), cpu_ticks(), network_bytes())
    gc.enable()
    return {
        "starts": starts,
        "finished": finished,
        "cpu_seconds": ended[0] - begun[0],
        "busy_seconds": ended[1].busy_seconds - begun[1].busy_seconds,
        "total_seconds": ended[1].total_seconds - begun[1].total_seconds,
        "sent_bytes": ended[2] - begun[2],
    }
