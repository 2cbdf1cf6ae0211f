"""The GPUs that ranks work on: which rank has which, whether ranks share one, and CUDA MPS.

NCCL refuses two ranks on one GPU only where their host ids agree too (`init.cc` compares both), so
every rank gets a host id of its own. Ranks of different hosts send by sockets, as on a cluster
without InfiniBand. NCCL 2.30 and later have a variable that allows such ranks on one host
(NCCL_MULTI_RANK_GPU_ENABLE); it is not used, because they would then copy within the GPU's memory
instead of sending."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch

from autosync.cancellation import wait_readable
from autosync.cluster import Backend
from autosync.errors import NotSupported
from autosync.trials.machine import host_id
from autosync.trials.request_names import GPU_BY_MPS, GPU_IN_TURNS


def refuse_without_gpu() -> None:
    """Raises NotSupported where torch can use no GPU of this machine."""
    if not torch.cuda.is_available():
        raise NotSupported(
            f"compute device cuda: torch {torch.__version__} sees no GPU on "
            f"{socket.gethostname()}.",
            thing="device",
            value="cuda",
            remedy="Install a torch built for CUDA and let it see a GPU (CUDA_VISIBLE_DEVICES), or "
            "stay in host memory (--compute-device cpu).",
        )


def take_gpu(local_rank: int) -> str:
    """Make one of the visible GPUs this process's own, in turn over the ranks of a host; its UUID.
    Where every rank sees one GPU alone, it is that one.

    Raises:
        NotSupported: there is none.
    """
    refuse_without_gpu()
    index = local_rank % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return gpu_uuid(torch.device("cuda", index))


def gpu_uuid(device: torch.device) -> str:
    """The same in every process that sees the GPU, whatever its number there."""
    return str(torch.cuda.get_device_properties(device).uuid)


def nccl_host() -> str:
    """What NCCL takes for this process's host: two ranks of one host may not have the same GPU."""
    return os.environ.get("NCCL_HOSTID") or host_id()


def local_ranks(hosts: Sequence[str]) -> list[int]:
    """Each rank's place among the ranks of its host."""
    return [hosts[:rank].count(host) for rank, host in enumerate(hosts)]


def refuse_shared_gpus(
    gpus: Sequence[str], nccl_hosts: Sequence[str], share_gpus: bool, backend: Backend
) -> None:
    """gpus: the UUID of every rank's, empty in host memory. nccl_hosts: what NCCL takes for each
    rank's host. share_gpus: whether ranks were allowed to share.

    Raises:
        NotSupported: two ranks have the same GPU, and were not allowed to; or the same host, too,
            which NCCL does not take.
    """
    for rank, gpu in enumerate(gpus):
        if not gpu or (first := gpus.index(gpu)) == rank:
            continue
        if not share_gpus:
            raise _not_let_to_share(f"ranks {first} and {rank} share GPU {gpu}", SEES_ONE)
        if backend == "nccl" and nccl_hosts[first] == nccl_hosts[rank]:
            raise NotSupported(
                f"ranks {first} and {rank} share GPU {gpu}, and NCCL sees host "
                f"{nccl_hosts[rank]!r} for both: it takes two ranks on a GPU only where their host "
                "ids differ.",
                thing="NCCL_HOSTID",
                value=nccl_hosts[rank],
                remedy="Give each rank an NCCL_HOSTID of its own where its worker starts, or write "
                "`backend: gloo` into the cluster file.",
            )


def refuse_fewer_gpus(ranks: int, share_gpus: bool) -> None:
    """Raises NotSupported where this machine has no GPU, or fewer than ranks that may not share
    them."""
    refuse_without_gpu()
    visible = torch.cuda.device_count()
    if visible < ranks and not share_gpus:
        gpus = "1 GPU" if visible == 1 else f"{visible} GPUs"
        raise _not_let_to_share(f"{ranks} ranks would share {gpus} of {socket.gethostname()}")


SEES_ONE = (
    "If their host has more GPUs, let each rank see all of them (srun and its job without "
    "--gpus-per-task, by which every step gets the same GPU). Else: "
)


def _not_let_to_share(what: str, before: str = "") -> NotSupported:
    return NotSupported(
        f"{what}: ranks have a GPU each, unless sharing is asked for.",
        thing="share_gpus",
        value=False,
        remedy=f"{before}Let ranks share GPUs (--share-gpus, or share_gpus=True of the launcher), "
        "or use a cluster file with fewer ranks.",
    )


def gpu_versions(backend: Backend) -> dict[str, str]:
    """What a trial on this process's GPU also depends on."""
    found = {
        "gpu": torch.cuda.get_device_name(),
        "cuda": str(torch.version.cuda),
        "backend": backend,
    }
    if backend == "nccl":
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


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
    # A client of CUDA MPS gets few hardware queues by default. Streams that share one wait for each
    # other: computing stood still behind messages under way (benchmarks.gpu.beside_ddp, H200).
    "CUDA_DEVICE_MAX_CONNECTIONS": "8",
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


MPS_SCRIPT = f"""
ask() {{ timeout {MPS_SECONDS / 2:g} {MPS_CONTROL} >/dev/null 2>&1; }}
if {MPS_CONTROL} -d </dev/null >/dev/null 2>&1 && echo get_server_list | ask
then echo started
else echo failed
fi
cat >/dev/null
{{
    echo quit -t 1 | ask || kill -9 "$(cat "$CUDA_MPS_PIPE_DIRECTORY/{MPS_CONTROL}.pid")"
}} 2>/dev/null
rm -rf "$CUDA_MPS_PIPE_DIRECTORY"
"""
"""For sh. The daemon lives until the input ends, as it does when its owner is killed. Clients that
hang are not waited for, and a daemon that does not answer is killed."""


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

    variables: what processes need to run by the daemon; none where none was started. As a context
    it gives them, and ends the daemon behind the block.
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
            ["sh", "-c", MPS_SCRIPT],
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

    def __enter__(self) -> dict[str, str]:
        self.start()
        return self.variables

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it and remove its folder. May be called twice."""
        self.variables = {}
        process, self._process = self._process, None
        if process is not None:
            try:
                process.communicate(timeout=MPS_SECONDS)
            except subprocess.TimeoutExpired:  # the control program hangs as it starts the daemon
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
