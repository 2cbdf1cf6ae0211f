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
from autosync.trials.contract import Workload
from autosync.trials.device_clock import Mark, mark, on_clock, zero
from autosync.trials.gpus import gpu_versions, take_gpu
from autosync.trials.iteration_recording import RankRecording
from autosync.trials.machine import (
    cpu_ticks,
    host_id,
    interface_towards,
    network_bytes,
    peak_memory_bytes,
    reset_peak_memory,
    software_versions,
)
from autosync.trials.trial_attachment import KeptGroups, TrialAttachment, attach, replica_digest
from autosync.trials.worker.replay_compute import sharpen_timer
from autosync.trials.worker.stretch_times import time_stretches
from autosync.trials.worker.timed_messages import message_times
from autosync.trials.worker.training_job import (
    ReplayJob,
    TrainingJob,
    builders,
    current_device,
    find_builder,
)

GROUP_TIMEOUT = timedelta(minutes=30)
"""Longer than any trial: the launcher, which knows a trial's timeout, kills one that hangs."""


class Rank:
    """State of a worker between commands."""

    def __init__(self, workloads: list[str]) -> None:
        self._workloads = workloads
        self._workload: Workload | None = None
        self._job: TrainingJob | None = None
        self._rank = 0
        self._device = torch.device("cpu")
        self._store: Store | None = None
        self._groups = KeptGroups()
        self._bundle: Bundle | None = None
        self._attached: TrialAttachment | None = None

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
                timed = message_times(self._rank, command, self._device)
                return {**timed, "host": host_id()}
            case "profile":
                return self.profile(command)
        raise InvalidInput(f"no command {command['op']!r}.", thing="op", value=command["op"])

    def start(self, command: dict[str, Any]) -> dict[str, Any]:
        """Build the job, on a GPU of the rank's where it wants one; rank 0 opens the store where
        the ranks meet."""
        torch.set_num_threads(1)
        sharpen_timer()
        self._rank = command["rank"]
        self._workload = from_data(Workload, command["workload"], "workload")
        gpu = take_gpu(command["local_rank"]) if self._workload.device == "cuda" else ""
        self._device = current_device(self._workload)
        build = find_builder(self._workload.name, builders(self._workloads))
        self._job = build(self._workload, self._rank)
        port = 0
        if self._rank == 0:
            store = TCPStore(
                command["host"], 0, is_master=True, wait_for_workers=False, timeout=GROUP_TIMEOUT
            )
            self._store, port = store, store.port
        return {"reply": "store", "port": port, "scaled": self._job.scaled, "gpu": gpu}

    def join(self, command: dict[str, Any]) -> dict[str, Any]:
        world, workload = command["world"], self._workload
        if workload is None:
            raise InvalidInput("a join came before the worker was started.", thing="op")
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            interface = interface_towards(command["host"], command["peer"])
            os.environ["GLOO_SOCKET_IFNAME"] = interface
        store = self._store or TCPStore(
            command["host"], command["port"], is_master=False, timeout=GROUP_TIMEOUT
        )
        dist.init_process_group(
            workload.backend,
            store=store,
            rank=self._rank,
            world_size=world,
            timeout=GROUP_TIMEOUT,
            device_id=self._device if workload.backend == "nccl" else None,
        )
        dist.barrier()
        gc.freeze()  # what start-up left behind need not be looked through between iterations
        return {
            "reply": "ready",
            "host": host_id(),
            "versions": software_versions()
            | (gpu_versions(workload.backend) if workload.device == "cuda" else {}),
        }

    def profile(self, command: dict[str, Any]) -> dict[str, Any]:
        """How long the stretches of a replay really take, all ranks computing at once."""
        workload, job = self._workload, self._job
        if workload is None or not isinstance(job, ReplayJob):
            raise InvalidInput("only a replay that was started has stretches.", thing="op")
        dist.barrier()
        times = time_stretches(workload, self._rank, job.compute, command["repeats"])
        return {"reply": "profile", "id": command["id"], **times}

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
        recording = RankRecording() if command["record"] else None
        warmup = command["warmup"]
        self._reset_peak_memory()
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
        measured = _measure(
            job, self._attached, warmup, command["iterations"], recording, self._device
        )
        self.settle()
        return {
            "reply": "trial",
            "id": command["id"],
            "peak_memory_bytes": self._peak_memory_bytes(),
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
        if self._device.type == "cuda":
            gc.collect()  # a detached engine is in reference cycles, and holds its buffers
            torch.cuda.empty_cache()  # ranks may share the GPU

    def _reset_peak_memory(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            reset_peak_memory()

    def _peak_memory_bytes(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated()
        return peak_memory_bytes()


def _measure(
    job: TrainingJob,
    attached: TrialAttachment,
    warmup: int,
    iterations: int,
    recording: RankRecording | None,
    device: torch.device,
) -> dict[str, Any]:
    """Forward starts of all iterations on `time.monotonic()`, and one after the last; when the
    last synchronization ended; CPU time and bytes of the measured iterations.

    Ranks need not meet before: periods count from the latest start of an iteration. On a GPU all
    are moments of the device's own stream, and the host runs ahead of it as in training: it waits
    for the device before the first iteration and after the last. So there the warm-up is counted,
    too, and its share of the bytes taken off."""
    in_host_memory = device.type == "cpu"
    counted = iterations if in_host_memory else warmup + iterations
    since = zero(device)
    interfaces = os.environ["GLOO_SOCKET_IFNAME"]
    starts: list[Mark] = []
    forwards: list[Mark] = []
    backwards: list[Mark] = []
    gc.disable()  # a collection in the middle of an iteration is nobody's communication time
    for iteration in range(warmup + iterations):
        if iteration == warmup + iterations - counted:
            begun = (time.process_time(), cpu_ticks(), network_bytes(interfaces))
        starts.append(mark(device))
        job.optimizer.zero_grad(set_to_none=True)
        loss = job.loss(attached.model)
        if recording:
            forwards.append(mark(device))
        loss.backward()
        if recording:
            backwards.append(mark(device))
        job.optimizer.step()
    starts.append(mark(device))
    attached.flush()
    if not in_host_memory:
        torch.cuda.synchronize()
    finished = time.monotonic()
    ended = (time.process_time(), cpu_ticks(), network_bytes(interfaces))
    gc.enable()
    if recording:
        recording.keep(on_clock(since, forwards), on_clock(since, backwards), in_host_memory)
    return {
        "starts": on_clock(since, starts),
        "finished": finished,
        "cpu_seconds": ended[0] - begun[0],
        "busy_seconds": ended[1].busy_seconds - begun[1].busy_seconds,
        "total_seconds": ended[1].total_seconds - begun[1].total_seconds,
        "sent_bytes": (ended[2] - begun[2]) * iterations // counted,
    }
