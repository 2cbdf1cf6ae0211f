"""What a rank can say of its own job without running it: how the model is wrapped, the backend, the
network interface that the backend takes."""

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autosync.diagnosis.pci_topology import (
    FarPort,
    PciDevice,
    far_port,
    gpu_of_uuid,
    matching_ports,
    network_ports,
    rdma_ports,
)
from autosync.environment import host_name
from autosync.runtime.hooks.torch_compile import is_compiled

Wrapping = Literal["ddp", "fsdp1", "fsdp2", "none"]

INTERFACE_VARIABLES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}
INTERFACES = Path("/sys/class/net")
VIRTUAL = (
    *("lo", "docker", "veth", "br-", "virbr", "ifb", "cni", "flannel"),
    *("cali", "cilium", "lxc"),  # of pods, on their host: each states 10 Gbit/s
)
"""How the names of interfaces begin that lead to no other host."""


@dataclass(frozen=True, slots=True)
class DdpFacts:
    """bucket_bytes: of each bucket, in the order of the last iteration; empty before the first.
    bucket_parameters: the names of each one's parameters, in the order in which their gradients
    came; empty where DDP does not say. unused_bytes: of parameters that the last iteration did not
    use."""

    find_unused_parameters: bool
    gradient_as_bucket_view: bool
    bucket_bytes: tuple[int, ...]
    unused_bytes: int
    bucket_parameters: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class JobFacts:
    """compiled: whether the model is compiled as a whole; False where torch.compile is around DDP,
    whose buckets split it. interface: that the backend takes, with its Gbit/s where the system
    states it (None: it does not), or empty where it cannot be told, or NCCL sends by RDMA ports;
    `others_gbps` is empty then, too. others_gbps: of interfaces that are up, by name. nccl_sockets:
    NCCL's variables for sockets that are set. far_port: of this rank's GPU, where its messages must
    take one."""

    rank: int
    host: str
    wrapping: Wrapping
    device: str
    backend: str
    compiled: bool
    gradient_bytes: int
    ddp: DdpFacts | None = None
    interface: str = ""
    interface_gbps: float | None = None
    others_gbps: tuple[tuple[str, float], ...] = ()
    nccl_sockets: tuple[str, ...] = ()
    far_port: FarPort | None = None


def unwrapped(model: nn.Module) -> nn.Module:
    """What DDP wraps, or the model itself."""
    inner = getattr(model, "_orig_mod", model)  # of torch.compile
    return inner.module if isinstance(inner, DistributedDataParallel) else inner


def wrapping_of(model: nn.Module) -> Wrapping:
    """How torch synchronizes the model, or modules of it, if it does."""
    inner = getattr(model, "_orig_mod", model)
    kinds = {kind.__name__ for each in inner.modules() for kind in type(each).__mro__}
    if "DistributedDataParallel" in kinds:
        return "ddp"
    if "FullyShardedDataParallel" in kinds:
        return "fsdp1"
    return "fsdp2" if "FSDPModule" in kinds else "none"


def facts_of(model: nn.Module) -> JobFacts:
    """Of this rank, once torch.distributed is initialized and an iteration has run."""
    inner, wrapping = unwrapped(model), wrapping_of(model)
    parameters = [p for p in inner.parameters() if p.requires_grad]
    device = parameters[0].device if parameters else torch.device("cpu")
    group = dist.group.WORLD
    assert group is not None
    backend = str(group._get_backend(device).name()).lower()
    interface, gbps, others = interfaces_of(backend)
    return JobFacts(
        dist.get_rank(),
        host_name(),
        wrapping,
        device.type,
        backend,
        is_compiled(inner) or (wrapping != "ddp" and is_compiled(model)),
        sum(p.nbytes for p in parameters),
        _ddp_facts(getattr(model, "_orig_mod", model)),
        interface,
        gbps,
        others,
        tuple(
            name for name in os.environ if name in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
        ),
        _far_port(device, backend, interface),
    )


def _ddp_facts(model: nn.Module) -> DdpFacts | None:
    if not isinstance(model, DistributedDataParallel):
        return None
    logged: dict[str, Any] = model._get_ddp_logging_data()
    sizes = str(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or "")
    found = [part.strip() for part in sizes.split(",")]
    return DdpFacts(
        bool(model.find_unused_parameters),
        bool(model.gradient_as_bucket_view),
        tuple(int(part) for part in found if part.isdigit()),
        int(logged.get("unused_parameter_size") or 0),
        names_of_buckets(
            str(logged.get("rebuilt_per_bucket_param_indices") or ""), _names_of_parameters(model)
        ),
    )


def _names_of_parameters(model: DistributedDataParallel) -> list[str]:
    """Of those that DDP reduces, by the numbers that it gives them."""
    names = {id(parameter): name for name, parameter in model.module.named_parameters()}
    return [names.get(id(parameter), "") for parameter in model._module_parameters]


def names_of_buckets(indices: str, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """indices: of the parameters of each bucket, as DDP logs them: `5 4, 3 2 1 0`. Empty where they
    do not fit the names."""
    buckets = [part.split() for part in indices.split(",")]
    numbers = [number for bucket in buckets for number in bucket]
    if sorted(numbers) != sorted(map(str, range(len(names)))):
        return ()
    return tuple(tuple(names[int(number)] for number in bucket) for bucket in buckets)


def _far_port(device: torch.device, backend: str, interface: str) -> FarPort | None:
    """NCCL sends by the nearest RDMA port that it may take, and by sockets where there is none."""
    if device.type != "cuda":
        return None
    gpu = gpu_of_uuid(str(getattr(torch.cuda.get_device_properties(device), "uuid", "")))
    if gpu is None:
        return None
    if ports := _rdma_ports(backend):
        stated = os.environ.get("NCCL_IB_HCA", "")
        return far_port(gpu, ports, matching_ports(stated, [port.name for port in ports]))
    return far_port(gpu, network_ports(path.name for path in _up_interfaces()), [interface])


def _rdma_ports(backend: str) -> tuple[PciDevice, ...]:
    """By which NCCL sends; none where it sends by sockets."""
    off = os.environ.get("NCCL_IB_DISABLE", "") not in ("", "0")
    off = off or os.environ.get("NCCL_NET", "").lower() == "socket"
    return () if off or backend != "nccl" else rdma_ports()


def interfaces_of(backend: str) -> tuple[str, float | None, tuple[tuple[str, float], ...]]:
    """That of the backend, its rate, and the rates of all others that are up; none of them where
    messages take RDMA ports, beside which an interface only starts the job."""
    if _rdma_ports(backend):
        return "", None, ()
    rates = {path.name: _gbps(path) for path in _up_interfaces()}
    stated = os.environ.get(INTERFACE_VARIABLES.get(backend, ""), "")
    allowed = matching_ports(stated, rates)
    if not stated:
        chosen = _interface_of(_own_address())
    elif stated.startswith("^") and len(allowed) > 1:
        chosen = ""  # any of those that are not excluded
    else:
        chosen = next(iter(allowed), "")
    others = tuple(
        (name, rate) for name, rate in rates.items() if rate is not None and name != chosen
    )
    return chosen, rates.get(chosen), others


def _up_interfaces() -> list[Path]:
    if not INTERFACES.is_dir():
        return []
    found = []
    for path in sorted(INTERFACES.iterdir()):
        with suppress(OSError):
            if (
                not path.name.startswith(VIRTUAL)
                and (path / "operstate").read_text().strip() != "down"
            ):
                found.append(path)
    return found


def _gbps(interface: Path) -> float | None:
    """None where the system does not say."""
    with suppress(OSError, ValueError):
        if (rate := int((interface / "speed").read_text())) > 0:
            return rate / 1e3
    return None


def _own_address() -> str:
    """Of the host's name, to which gloo binds by default; empty where it has none."""
    with suppress(OSError):
        return socket.gethostbyname(socket.gethostname())
    return ""


def _interface_of(address: str) -> str:
    """Of this host, by one of its IPv4 addresses; empty where none has it."""
    with suppress(OSError):
        import fcntl
        import struct

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode()[:15])
                with suppress(OSError):
                    answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
                    if socket.inet_ntoa(answer[20:24]) == address:
                        return name
    return ""
