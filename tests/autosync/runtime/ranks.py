"""Warm ranks on loopback that run test functions: one spawn for many cases."""

import gc
import os
import re
import socket
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch._C._distributed_c10d import TCPStore

from autosync.runtime.device.model_device import UNVERIFIED
from tests.autosync.runtime.place import settle

PRELOADED = ["tests.autosync.runtime.preloaded"]
ANSWER_SECONDS = 180


def _serve(
    rank: int, world: int, port: int, pipe: Connection, timeout_seconds: float, way: str
) -> None:
    gc.freeze()  # the runtime collects garbage often; what the imports made is none
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    # gloo spins while the lock holder is preempted: 6 to 20 ms a message under the default policy
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    if way == "nccl":
        warnings.filterwarnings("ignore", message=re.escape(UNVERIFIED))
    settle(way, rank)
    store = TCPStore("127.0.0.1", port, world, rank == 0)
    dist.init_process_group(
        "nccl" if way == "nccl" else "gloo",
        store=store,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=timeout_seconds),
    )
    while (job := pipe.recv()) is not None:
        number, function, arguments = job
        try:
            pipe.send((number, "ok", function(rank, world, *arguments)))
        except Exception:  # the process boundary: the test shows the trace
            pipe.send((number, "error", traceback.format_exc()))
    dist.destroy_process_group()


class Ranks:
    """`world` processes; `run` calls a function as f(rank, world, *arguments) on each."""

    def __init__(self, world: int, timeout_seconds: float = 60.0, way: str = "host"):
        self.world = world
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        # A server that has imported torch once forks every rank: 2 s of processor time less each.
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.pipes: list[Connection] = []
        self.processes = []
        self._runs = 0
        for rank in range(world):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, world, port, there, timeout_seconds, way), daemon=True
            )
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        answers = self.answers(function, *arguments)
        errors = [
            f"rank {rank}: {text}" for rank, (kind, text) in enumerate(answers) if kind != "ok"
        ]
        assert not errors, "\n".join(errors)
        return [value for _, value in answers]

    def answers(self, function: Callable[..., Any], *arguments: Any) -> list[tuple[str, Any]]:
        """Of each rank ("ok", what it returned) or ("error", what happened)."""
        self._runs += 1
        for pipe in self.pipes:
            pipe.send((self._runs, function, arguments))
        return [self._answer(rank) for rank in range(self.world)]

    def _answer(self, rank: int) -> tuple[str, Any]:
        """Of this run: of one that was given up an answer may still come, and counts no more."""
        number = 0
        while number < self._runs:
            if not self.pipes[rank].poll(ANSWER_SECONDS):
                return "error", f"no answer in {ANSWER_SECONDS} s"
            try:
                number, kind, value = self.pipes[rank].recv()
            except EOFError:
                return "error", "died"
        return kind, value

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if process.is_alive():
                try:
                    pipe.send(None)
                except BrokenPipeError:
                    continue
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


@contextmanager
def ranks(world: int, timeout_seconds: float = 60.0, way: str = "host") -> Iterator[Ranks]:
    """way: of `place.WAYS`."""
    pool = Ranks(world, timeout_seconds, way)
    try:
        yield pool
    finally:
        pool.close()
