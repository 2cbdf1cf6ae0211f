"""Several NCCL ranks on one GPU: their environment, and CUDA MPS, which runs them side by side.

NCCL refuses two ranks on one GPU only where their host ids agree too (`init.cc` compares both), so
every rank gets a host id of its own. Ranks of different hosts send by sockets, as on a cluster
without InfiniBand. NCCL 2.30 and later have a variable that allows such ranks on one host
(NCCL_MULTI_RANK_GPU_ENABLE); it is not used, because they would then copy within the GPU's memory
instead of sending.

Light enough for tests and scripts: nothing here imports torch.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

GpuSharing = Literal["mps", "turns"]
"""How kernels of several processes run on one GPU: side by side, by CUDA MPS, or in time slices."""

MPS_CONTROL = "nvidia-cuda-mps-control"
MPS_SECONDS = 20.0
"""How long the control program may take to answer."""

SHARED_GPU_VARIABLES = {
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    # Ways of sharing memory between hosts' GPUs, which these ranks do not have.
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_RAS_ENABLE": "0",
    # LL and LL128 poll memory from within kernels: 45 times slower where processes take turns.
    "NCCL_PROTO": "Simple",
    # Kernels of all ranks must be resident at once, beside those that compute.
    "NCCL_MAX_CTAS": "4",
    # Loading a kernel lazily waits for the GPU, on which a peer's collective may wait in turn.
    "CUDA_MODULE_LOADING": "EAGER",
}


def shared_gpu_environment(rank: int, interface: str = "lo") -> dict[str, str]:
    """What a rank that shares its GPU must have in its environment before it uses CUDA or NCCL.

    interface: the network interface that NCCL sends over; empty leaves the choice to NCCL.
    """
    bound = {"NCCL_SOCKET_IFNAME": f"={interface}"} if interface else {}
    return {"NCCL_HOSTID": f"autosync-{rank}", **SHARED_GPU_VARIABLES, **bound}


def mps_running(environment: Mapping[str, str] | None = None) -> bool:
    """Whether processes with this environment (by default this process's) run by CUDA MPS."""
    return _tell_mps("get_server_list", os.environ if environment is None else environment)


@contextmanager
def cuda_mps() -> Iterator[dict[str, str]]:
    """Runs CUDA MPS, with pipe and log folders of its own; the GPU's compute mode stays as it is.

    Gives the variables that processes need to run by it. There are none where MPS runs already,
    and where this machine cannot have it: `mps_running` tells which.
    """
    if shutil.which(MPS_CONTROL) is None or mps_running():
        yield {}
        return
    folder = tempfile.mkdtemp(prefix="autosync-mps-")
    variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    environment = {**os.environ, **variables}
    try:
        yield variables if _start_mps(environment) else {}
    finally:
        _tell_mps("quit -t 1", environment)  # a client that hangs is not waited for
        shutil.rmtree(folder, ignore_errors=True)


def _start_mps(environment: Mapping[str, str]) -> bool:
    return _call_mps(["-d"], "", environment) and mps_running(environment)


def _tell_mps(command: str, environment: Mapping[str, str]) -> bool:
    """Whether a control daemon took the command."""
    return _call_mps([], command + "\n", environment)


def _call_mps(arguments: list[str], text: str, environment: Mapping[str, str]) -> bool:
    """Output goes to nowhere, as the daemon that `-d` leaves behind would hold a pipe open."""
    try:
        done = subprocess.run(
            [MPS_CONTROL, *arguments],
            input=text,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            env=dict(environment),
            timeout=MPS_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
