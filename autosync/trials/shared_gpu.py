"""Several NCCL ranks on one machine or one GPU: their environment, and CUDA MPS.

NCCL refuses two ranks on one GPU only where their host ids agree too (`init.cc` compares both), so
every rank gets a host id of its own. Ranks of different hosts send by sockets, as on a cluster
without InfiniBand. NCCL 2.30 and later have a variable that allows such ranks on one host
(NCCL_MULTI_RANK_GPU_ENABLE); it is not used, because they would then copy within the GPU's memory
instead of sending.

Light enough for tests and scripts: nothing here imports torch.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from autosync.cancellation import wait_readable
from autosync.trials.request_names import GPU_BY_MPS, GPU_IN_TURNS

MPS_CONTROL = "nvidia-cuda-mps-control"
MPS_SECONDS = 20.0
"""How long the control program may take to answer."""

SOCKET_VARIABLES = {
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    # Ways of sharing memory between GPUs, which ranks of different hosts do not have.
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_RAS_ENABLE": "0",
}
SHARED_GPU_VARIABLES = {
    # LL and LL128 poll memory from within kernels: 45 times slower where processes take turns.
    "NCCL_PROTO": "Simple",
    # Kernels of all ranks must be resident at once, beside those that compute.
    "NCCL_MAX_CTAS": "4",
    # Loading a kernel lazily waits for the GPU, on which a peer's collective may wait in turn.
    "CUDA_MODULE_LOADING": "EAGER",
}


def socket_environment(rank: int, interface: str = "lo") -> dict[str, str]:
    """What makes NCCL send by sockets to every other rank, whether of this machine or not. It is
    read once a process, so it must be there before CUDA or NCCL are used.

    interface: the network interface that NCCL sends over; empty leaves the choice to NCCL.
    """
    bound = {"NCCL_SOCKET_IFNAME": f"={interface}"} if interface else {}
    return {"NCCL_HOSTID": f"autosync-{rank}", **SOCKET_VARIABLES, **bound}


def shared_gpu_environment(rank: int, interface: str = "lo") -> dict[str, str]:
    """What a rank that shares its GPU must have in its environment; see `socket_environment`."""
    return {**socket_environment(rank, interface), **SHARED_GPU_VARIABLES}


NcclEnvironment = Callable[[int, str], dict[str, str]]
"""Of a rank that sends over an interface: one of the two above."""


def sharing_words(gpus: Sequence[str], by_mps: Sequence[bool]) -> str:
    """How ranks share GPUs, for records and reports; empty where each has its own.

    gpus: the UUID of each rank's, empty in host memory. by_mps: whether the rank runs by CUDA MPS.
    """
    most = max(Counter(filter(None, gpus)).values(), default=1)
    if most == 1:
        return ""
    return f"{most} ranks {GPU_BY_MPS if all(by_mps) else GPU_IN_TURNS}"


def mps_running(environment: Mapping[str, str] | None = None) -> bool:
    """Whether processes with this environment (by default this process's) run by CUDA MPS."""
    try:
        done = subprocess.run(
            [MPS_CONTROL],
            input="get_server_list\n",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            env=None if environment is None else dict(environment),
            timeout=MPS_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


MPS_LIFE = f"""
if {MPS_CONTROL} -d </dev/null >/dev/null 2>&1 &&
    echo get_server_list | {MPS_CONTROL} >/dev/null 2>&1
then echo started
else echo failed
fi
cat >/dev/null
echo quit -t 1 | {MPS_CONTROL} >/dev/null 2>&1
rm -rf "$CUDA_MPS_PIPE_DIRECTORY"
"""
"""For sh. The daemon lives until the input ends, as it does when its owner is killed. Clients that
hang are not waited for."""


MPS_CLIENT = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
failed = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
sys.exit(bool(failed or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)))
"""
"""A process that uses the GPU. Where a daemon runs but cannot serve (in some containers), CUDA
fails in every process that finds it."""


def mps_serves(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment can use the first GPU."""
    command = [sys.executable, "-I", "-S", "-c", MPS_CLIENT]
    try:
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, timeout=MPS_SECONDS
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


class CudaMps:
    """CUDA MPS for processes that share GPUs of this machine: their kernels run side by side.

    The GPUs' compute mode stays as it is. Where this machine lacks MPS, or runs it already, nothing
    is started, and a daemon that cannot serve ends at once; `mps_running` says whether it runs.

    variables: what processes need to run by the daemon; none where none was started.
    """

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, in a folder of its own; one that runs ends before. Processes that were killed
        in the middle of a kernel may leave a server that no other process should use."""
        self.stop()
        if shutil.which(MPS_CONTROL) is None or mps_running():
            return
        folder = tempfile.mkdtemp(prefix="autosync-mps-")
        variables = dict.fromkeys(("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"), folder)
        self._process = subprocess.Popen(
            ["sh", "-c", MPS_LIFE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        assert self._process.stdout is not None
        try:
            answered = wait_readable(self._process.stdout, MPS_SECONDS)
            started = answered and self._process.stdout.readline() == "started\n"
            serves = started and mps_serves({**os.environ, **variables})
        except BaseException:  # an interrupt, too, leaves no daemon
            self.stop()
            raise
        if serves:
            self.variables = variables
        else:
            self.stop()

    def stop(self) -> None:
        """End it and remove its folder. May be called twice."""
        self.variables = {}
        process, self._process = self._process, None
        if process is not None:
            try:
                process.communicate(timeout=MPS_SECONDS)
            except subprocess.TimeoutExpired:  # the daemon does not answer
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


@contextmanager
def cuda_mps() -> Iterator[dict[str, str]]:
    """Runs CUDA MPS meanwhile, and gives the variables that processes need to run by it: none
    where it runs already, or where this machine cannot have it."""
    mps = CudaMps()
    try:
        mps.start()
        yield mps.variables
    finally:
        mps.stop()
