"""Which GPU a rank works on, and what it holds of its memory."""

import socket
from collections.abc import Sequence

import torch

from autosync.errors import NotSupported
from autosync.trials.machine import peak_memory_bytes, reset_peak_memory


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
    return str(torch.cuda.get_device_properties(index).uuid)


def gpu_of(local_rank: int, visible: int) -> int:
    """Where every rank sees one GPU of its own (Slurm's --gpus-per-task), that one."""
    return local_rank % visible


def local_ranks(hosts: Sequence[str]) -> list[int]:
    """Each rank's place among the ranks of its host."""
    return [hosts[:rank].count(host) for rank, host in enumerate(hosts)]


def refuse_shared_gpus(gpus: Sequence[str]) -> None:
    """gpus: the UUID of every rank's.

    Raises:
        NotSupported: two ranks have the same, which NCCL does not take.
    """
    for rank, gpu in enumerate(gpus):
        if (first := gpus.index(gpu)) != rank:
            raise NotSupported(
                f"ranks {first} and {rank} share GPU {gpu}: NCCL wants one of its own for each.",
                thing="cluster.backend",
                value="nccl",
                remedy="Write `backend: gloo` into the cluster file, or start fewer ranks a node.",
            )


def gpu_versions(backend: str) -> dict[str, str]:
    """What a trial on this process's GPU also depends on."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "cuda": str(torch.version.cuda),
        "backend": backend,
    }


def reset_peak(device: torch.device) -> bool:
    """Begin anew to look for the peak of a device's memory: of a GPU's in tensors of this process,
    else of this process's resident size. Whether its kernel lets it."""
    if device.type != "cuda":
        return reset_peak_memory()
    torch.cuda.reset_peak_memory_stats(device)
    return True


def peak_bytes(device: torch.device) -> int:
    """Since the last reset, or in the whole life of this process."""
    if device.type != "cuda":
        return peak_memory_bytes()
    return torch.cuda.max_memory_allocated(device)
