"""One rank in trials: it joins the group, runs iterations and measures them."""

import gc
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import Store, TCPStore

from autosync.bundle import Bundle
from autosync.errors import AutosyncError, InvalidInput
from autosync.nccl_knobs import TUNER_FILE, TUNER_FILE_VARIABLE
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.transport.tensor_exchange import share_initial_values
from autosync.runtime.updates.optimizers import make_first_state
from autosync.trials.commands import (
    Answer,
    Command,
    GroupJoined,
    JoinGroup,
    PassDone,
    RunPass,
    StartWorker,
    StretchesTimed,
    TimeMessages,
    TimeStretches,
    WorkerStarted,
)
from autosync.trials.contract import Workload
from autosync.trials.gpus import gpu_versions, mps_running, nccl_host, take_gpu
from autosync.trials.iterations import (
    measure_pass,
)
from autosync.trials.machine import host_id, interface_towards, software_versions
from autosync.trials.measurement import may_drift
from autosync.trials.session import ReusedGroups, TrialAttachment, attach
from autosync.trials.worker.replay_compute import reduce_timer_slack
from autosync.trials.worker.timed_messages import time_messages
from autosync.trials.worker.training_job import (
    ReplayJob,
    TrainingJob,
    builder_named,
    current_device,
    time_stretches,
)

GROUP_TIMEOUT = timedelta(minutes=30)
"""Longer than any trial: the launcher, which knows a trial's timeout, kills one that hangs."""

CONNECT_TIMEOUT = timedelta(seconds=30)
"""Well below the launcher's for a start, which knows no reason: a firewall, or a name of rank 0's
host that only ssh knows."""


class Rank:
    """State of a worker between commands."""

    def __init__(self, workloads: list[str]) -> None:
        self._workloads = workloads
        self._workload: Workload | None = None
        self._job: TrainingJob | None = None
        self._rank = 0
        self._device = torch.device("cpu")
        self._store: Store | None = None
        self._groups = ReusedGroups()
        self._bundle: Bundle | None = None
        self._attached: TrialAttachment | None = None
        self._drifted = False

    def answer(self, command: Command) -> Answer:
        """The answer to one command."""
        match command:
            case StartWorker():
                return self.start(command)
            case JoinGroup():
                return self.join(command)
            case RunPass():
                return self.run_pass(command)
            case TimeMessages():
                groups = self._groups.get(dist.group.WORLD)
                return time_messages(command, groups, self._device)
            case TimeStretches():
                return self.time_stretches(command)

    def start(self, command: StartWorker) -> WorkerStarted:
        """Build the job, on a GPU of the rank's where it wants one; rank 0 opens the store where
        the ranks meet."""
        os.environ.update(command.environment)
        if command.tuner_configuration:
            os.environ[TUNER_FILE_VARIABLE] = kept_in_memory(
                TUNER_FILE, command.tuner_configuration
            )
        torch.set_num_threads(1)
        reduce_timer_slack()
        self._rank = command.rank
        self._workload = command.workload
        on_gpu = self._workload.device == "cuda"
        gpu = take_gpu(command.local_rank) if on_gpu else ""
        self._device = current_device(self._workload)
        build = builder_named(self._workload.name, self._workloads)
        self._job = build(self._workload, self._rank)
        if not self._job.scaled:
            self._workload.refuse_scales("steps of a model")
            self._drifted = True  # each rank may have drawn values of its own
        port = 0
        if self._rank == 0:
            store = opened_store(command.host, 0, is_master=True)
            self._store, port = store, store.port
        by_mps = on_gpu and mps_running()
        return WorkerStarted(port, self._job.scaled, gpu, nccl_host(), by_mps)

    def join(self, command: JoinGroup) -> GroupJoined:
        workload = self._workload
        if workload is None:
            raise InvalidInput("a join came before the worker was started.", thing="op")
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            interface = interface_towards(command.host, command.peer)
            os.environ["GLOO_SOCKET_IFNAME"] = interface
        store = self._store or opened_store(command.host, command.port, is_master=False)
        dist.init_process_group(
            workload.backend,
            store=store,
            rank=self._rank,
            world_size=command.world_size,
            timeout=GROUP_TIMEOUT,
            device_id=self._device if workload.backend == "nccl" else None,
        )
        dist.barrier()
        gc.freeze()  # what start-up left behind need not be looked through between iterations
        on_gpu = gpu_versions(workload.backend) if workload.device == "cuda" else {}
        return GroupJoined(host_id(), software_versions() | on_gpu)

    def time_stretches(self, command: TimeStretches) -> StretchesTimed:
        """How long the stretches of a replay really take, all ranks computing at once."""
        workload, job = self._workload, self._job
        if workload is None or not isinstance(job, ReplayJob):
            raise InvalidInput("only a replay that was started has stretches.", thing="op")
        dist.barrier()
        return time_stretches(workload, self._rank, job.compute, command.repeats)

    def run_pass(self, command: RunPass) -> PassDone:
        """Attach, warm up, measure, detach. Where measuring fails, `detach_plan` is called
        once that has been answered."""
        workload, job = self._workload, self._job
        if workload is None or job is None:
            raise InvalidInput("a pass came before the worker was started.", thing="op")
        bundle = self._bundle = command.bundle or self._bundle
        if bundle is None:
            raise InvalidInput("a pass came without a plan.", thing="bundle")
        if self._drifted:
            self._make_equal(job)
        self._drifted = True  # ranks that refuse a plan may end at different updates
        job.begin(command.key, bundle)
        if isinstance(job, ReplayJob):
            job.compute.set_slowdown(command.compute_slowdown)

        def attach_plan(trace: ExecutionTrace | None) -> TrialAttachment:
            try:
                self._attached = attach(
                    job.model, job.optimizer, bundle, workload.byte_scale, self._groups, trace
                )
            except AutosyncError:
                self._groups.close()  # a refused plan may have left them half connected
                raise
            gc.disable()  # a collection within an iteration would be measured as communication
            return self._attached

        def train_step(model: nn.Module, iteration: int) -> None:
            job.optimizer.zero_grad(set_to_none=True)
            for _ in range(workload.domain.accumulate - 1):
                with model.no_sync():  # type: ignore[operator]  # of every attached model
                    job.loss(model).backward()
            job.loss(model).backward()
            job.optimizer.step()

        done = measure_pass(
            command,
            attach_plan,
            train_step,
            self.detach_plan,
            job.model,
            [job.optimizer],
            engine=bundle.plan.engine,
            batches=workload.domain.accumulate,
            interfaces=os.environ["GLOO_SOCKET_IFNAME"],
        )
        self._drifted = may_drift(bundle)
        return done

    def detach_plan(self) -> None:
        """Leave the job unsynchronized. After a failure this waits until that has been answered:
        ranks that did not fail never meet it here, and the pool ends the wait."""
        gc.enable()
        attached, self._attached = self._attached, None
        if attached is None or self._job is None:
            return
        attached.detach()
        self._job.optimizer.zero_grad(set_to_none=True)
        if self._device.type == "cuda":
            gc.collect()  # a detached engine is in reference cycles, and holds its buffers
            torch.cuda.empty_cache()  # ranks may share the GPU

    def _make_equal(self, job: TrainingJob) -> None:
        """Rank 0's values on every rank, and no state of the optimizer: the plan before may have
        left both unequal, and an exact one keeps them so. A collective."""
        everyone = tuple(range(dist.get_world_size()))
        groups = self._groups.get(dist.group.WORLD)
        on_device = dist.group.WORLD if groups.backend == "nccl" else None
        share_initial_values(groups.get("control", everyone, "gloo"), job.model, on_device)
        job.optimizer.state.clear()
        make_first_state(job.optimizer)


def opened_store(host: str, port: int, *, is_master: bool) -> TCPStore:
    """Where the ranks meet; the master, rank 0, opens it. Raises RuntimeError, with host and port,
    where it is not reached."""
    store = TCPStore(
        host, port, is_master=is_master, wait_for_workers=False, timeout=CONNECT_TIMEOUT
    )
    store.set_timeout(GROUP_TIMEOUT)
    return store


def kept_in_memory(name: str, text: str) -> str:
    """The path, in this process, of a file that holds the text. It lies in memory and goes with the
    process, also where that is killed."""
    descriptor = os.memfd_create(name)
    with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
        file.write(text)
    return f"/proc/self/fd/{descriptor}"
