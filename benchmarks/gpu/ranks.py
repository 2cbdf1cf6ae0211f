"""Ranks of one process group on this machine, for benchmarks; they may share its GPUs."""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosync.trials.gpus import CudaMps, mps_running, shared_gpu_environment
from autosync.trials.request_names import GPU_BY_MPS, GPU_IN_TURNS, BackendName
from benchmarks.output import option_parser

OTHERS_SECONDS = 5.0
"""What ranks are given once another one has failed; they may wait in a kernel for ever."""


def gpu_options(
    description: str | None, device: str = "cuda", backend: str = "nccl"
) -> argparse.ArgumentParser:
    """Options of a benchmark of ranks on this machine, with their defaults."""
    parser = option_parser(description)
    parser.add_argument("--device", default=device, choices=("cpu", "cuda"))
    parser.add_argument("--backend", default=backend, choices=("gloo", "nccl"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


class RankFailed(Exception):
    """A rank ended without a result; its own error stands above on stderr."""


def on_ranks(
    world: int,
    device: str,
    backend: BackendName,
    function: Callable[..., Any],
    *arguments: Any,
    environment: Mapping[str, str] | None = None,
) -> list[Any]:
    """What function(rank, world, device, *arguments) returns on each of `world` new processes.

    device: cpu, or cuda, of which each rank takes one; where there are fewer, ranks share them, by
    CUDA MPS where the machine has it. environment: of the processes, above this one's and what
    ranks that share a GPU are given; an empty value unsets a variable.

    Raises:
        RankFailed: names the ranks.
    """
    context = get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ExitStack() as stack:
        shares = device == "cuda" and torch.cuda.device_count() < world
        mps = stack.enter_context(CudaMps()) if shares else {}
        processes, pipes = [], []
        found: dict[int, Any] = {}
        for rank in range(world):
            here, there = context.Pipe()
            own = {**mps, **(shared_gpu_environment(rank) if shares else {}), **(environment or {})}
            given = (rank, world, port, device, backend, own, there, function, arguments)
            process = context.Process(target=_serve, args=given, daemon=True)
            process.start()
            there.close()
            processes.append(process)
            pipes.append(here)
        try:
            found = _answers(pipes)
        finally:
            for process in processes:
                process.join(OTHERS_SECONDS if len(found) == world else 0.0)
                process.kill()
                process.join()
    if missing := [rank for rank in range(world) if rank not in found]:
        raise RankFailed(f"ranks {missing} of {world} ended with their errors above")
    return [found[rank] for rank in range(world)]


def _answers(pipes: Sequence[Connection]) -> dict[int, Any]:
    """By rank; without those that died, and those that waited for them."""
    found: dict[int, Any] = {}
    waiting = dict(zip(pipes, range(len(pipes)), strict=True))
    deadline: float | None = None
    while waiting:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait(list(waiting), left)
        if not ready:
            break
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = waiting.pop(pipe)
            try:
                found[rank] = pipe.recv()
            except EOFError:
                deadline = deadline or time.monotonic() + OTHERS_SECONDS
    return found


def _serve(
    rank: int,
    world: int,
    port: int,
    device: str,
    backend: str,
    environment: dict[str, str],
    pipe: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    for name, value in environment.items():
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)
    os.environ |= {
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "AUTOSYNC_HOST": f"host{rank}",
    }
    torch.set_num_threads(1)
    place = torch.device(device)
    if device == "cuda":
        place = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(place)
    dist.init_process_group(backend, rank=rank, world_size=world)
    pipe.send(function(rank, world, place, *arguments))
    dist.destroy_process_group()


MACHINE = """
import json, platform, torch
from torch import cuda
found = {"python": platform.python_version(), "torch": torch.__version__}
if cuda.is_available():
    found |= {
        "gpu": cuda.get_device_name(),
        "gpus": cuda.device_count(),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, cuda.nccl.version())),
    }
print(json.dumps(found))
"""


def machine_facts() -> dict[str, Any]:
    """Of what figures depend on. Asked of a process of its own, which leaves no context of CUDA
    behind."""
    told = subprocess.run([sys.executable, "-c", MACHINE], capture_output=True, text=True)
    facts: dict[str, Any] = json.loads(told.stdout) if told.returncode == 0 else {}
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
        facts |= {"driver": driver[0]} if driver else {}
    except OSError:  # a machine without an NVIDIA driver
        pass
    return facts


def sharing_of(world: int, device: str) -> str:
    """How the ranks of `on_ranks` share GPUs, in words; empty where each has its own."""
    if device != "cuda" or torch.cuda.device_count() >= world:
        return ""
    with CudaMps() as variables:
        return GPU_BY_MPS if mps_running({**os.environ, **variables}) else GPU_IN_TURNS
