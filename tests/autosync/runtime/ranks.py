"""Warm ranks on loopback that run test functions: one spawn for many cases."""

import faulthandler
import gc
import multiprocessing.connection as connections
import os
import re
import socket
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch._C._distributed_c10d import TCPStore

from autosync.runtime.device.model_tensors import UNVERIFIED
from autosync.trials.gpus import shared_gpu_environment
from tests.autosync.runtime.place import GPU_WAYS, settle, way_here

PRELOADED = ["tests.autosync.runtime.preloaded"]
ANSWER_SECONDS = 180.0
GPU_ANSWER_SECONDS = 60.0
"""How long a function may take. Then its process is killed, as a rank whose peer is gone may spin
in a kernel for ever, which no exception ends."""
START_SECONDS = 90.0
"""How much longer the first function may take, which processes begin with: CUDA loads all kernels
where ranks share a GPU."""
LEFT_BEHIND_SECONDS = 15.0
"""What ranks are given when another one has failed: they may wait for it."""

Answer = tuple[str, Any]


def _serve(
    rank: int,
    world: int,
    port: int,
    pipe: Connection,
    way: str,
    timeout_seconds: float,
    answer_seconds: float,
    keep_groups: bool,
    environment: dict[str, str],
) -> None:
    gc.freeze()  # the runtime collects garbage often; what the imports made is none
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ.update(environment)
    # gloo spins while the lock holder is preempted: 6 to 20 ms a message under the default policy
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    torch.set_num_threads(1)
    if way not in GPU_WAYS:  # a GPU's torch may be another version, with warnings of its own
        warnings.simplefilter("error")
    if way == "nccl":
        warnings.filterwarnings("ignore", message=re.escape(UNVERIFIED))
    settle(way, rank, keep_groups)
    store = TCPStore("127.0.0.1", port, world, rank == 0)
    dist.init_process_group(
        "nccl" if way == "nccl" else "gloo",
        store=store,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=timeout_seconds),
    )
    while (job := pipe.recv()) is not None:
        function, arguments = job
        # Says where it hung, a moment before the test kills it.
        faulthandler.dump_traceback_later(answer_seconds, exit=True)
        try:
            answer = ("ok", function(rank, world, *arguments))
        except Exception:  # the process boundary: the test shows the trace
            answer = ("error", traceback.format_exc())
        faulthandler.cancel_dump_traceback_later()
        pipe.send(answer)
    dist.destroy_process_group()


class Ranks:
    """`world` processes; `run` calls a function as f(rank, world, *arguments) on each.

    way: of `place`. timeout_seconds: of the process group. keep_groups: plan after plan runs on the
    same process groups, as in trials; connecting them takes most of a small test on NCCL.
    """

    def __init__(
        self,
        world: int,
        timeout_seconds: float = 120.0,
        way: str = "host",
        keep_groups: bool = False,
    ):
        self.world = world
        self.way = way_here(way)
        self.timeout_seconds = timeout_seconds
        self.keep_groups = keep_groups
        on_gpu = self.way in GPU_WAYS
        self.answer_seconds = GPU_ANSWER_SECONDS if on_gpu else ANSWER_SECONDS
        self.pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []
        self._start()

    def _start(self) -> None:
        self._fresh = True
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        # A server that has imported torch once forks every rank: 2 s of processor time less each.
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        shared = self.way == "nccl" and torch.cuda.device_count() < self.world
        for rank in range(self.world):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(
                    rank,
                    self.world,
                    port,
                    there,
                    self.way,
                    self.timeout_seconds,
                    self.answer_seconds,
                    self.keep_groups,
                    shared_gpu_environment(rank) if shared else {},
                ),
                daemon=True,
            )
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        answers = self._answers(function, arguments, LEFT_BEHIND_SECONDS)
        errors = [
            f"rank {rank}: {text}" for rank, (kind, text) in enumerate(answers) if kind != "ok"
        ]
        if errors:  # the others may wait in what a rank has left
            self.kill()
        assert not errors, "\n".join(errors)
        return [value for _, value in answers]

    def answers(self, function: Callable[..., Any], *arguments: Any) -> list[Answer]:
        """Of each rank ("ok", what it returned) or ("error", what happened)."""
        return self._answers(function, arguments, self.answer_seconds)

    def _answers(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], left_behind_seconds: float
    ) -> list[Answer]:
        if not self.processes:
            self._start()
        for pipe in self.pipes:
            pipe.send((function, arguments))
        found: dict[int, Answer] = {}
        deadline = time.monotonic() + self.answer_seconds + 5.0
        if self._fresh:
            deadline += START_SECONDS
        self._fresh = False
        while len(found) < self.world:
            waiting = {pipe: rank for rank, pipe in enumerate(self.pipes) if rank not in found}
            ready = connections.wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                self.kill()
                found |= dict.fromkeys(waiting.values(), ("error", "no answer in time"))
            for pipe in self.pipes:
                if pipe in ready:
                    found[waiting[pipe]] = _received(pipe)
            if any(kind != "ok" for kind, _ in found.values()):
                deadline = min(deadline, time.monotonic() + left_behind_seconds)
        return [found[rank] for rank in range(self.world)]

    def kill(self) -> None:
        """The next function begins with new processes."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self.processes.clear()
        self.pipes.clear()

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if process.is_alive():
                try:
                    pipe.send(None)
                except BrokenPipeError:
                    continue
        for process in self.processes:
            process.join(10)
        self.kill()


def _received(pipe: Connection) -> Answer:
    try:
        answer: Answer = pipe.recv()
    except EOFError:
        return "error", "died"
    return answer


@contextmanager
def ranks(
    world: int, timeout_seconds: float = 120.0, way: str = "host", keep_groups: bool = False
) -> Iterator[Ranks]:
    """See `Ranks`."""
    pool = Ranks(world, timeout_seconds, way, keep_groups)
    try:
        yield pool
    finally:
        pool.close()
