"""The device that a rank works on: which GPU, whether others may, its clock and its memory."""

import os
import socket
from collections.abc import Sequence

import torch

from autosync.cluster import Backend
from autosync.errors import NotSupported
from autosync.trials.machine import host_id


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

    Raises:
        NotSupported: there is none.
    """
    refuse_without_gpu()
    index = gpu_of(local_rank, torch.cuda.device_count())
    torch.cuda.set_device(index)
    return gpu_uuid(torch.device("cuda", index))


def gpu_uuid(device: torch.device) -> str:
    """The same in every process that sees the GPU, whatever its number there."""
    return str(torch.cuda.get_device_properties(device).uuid)


def nccl_host() -> str:
    """What NCCL takes for this process's host: two ranks of one host may not have the same GPU."""
    return os.environ.get("NCCL_HOSTID") or host_id()


def gpu_of(local_rank: int, visible: int) -> int:
    """Where every rank sees one GPU of its own (Slurm's --gpus-per-task), that one."""
    return local_rank % visible


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
            raise _not_let_to_share(f"ranks {first} and {rank} share GPU {gpu}")
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


def _not_let_to_share(what: str) -> NotSupported:
    return NotSupported(
        f"{what}: ranks have a GPU each, unless sharing is asked for.",
        thing="share_gpus",
        value=False,
        remedy="Let ranks share GPUs (--share-gpus, or share_gpus=True of the launcher), or use a "
        "cluster file with fewer ranks.",
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
