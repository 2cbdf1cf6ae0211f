"""What a rank can say of its own job without running it: how the model is wrapped, the backend, the
network interface that the backend takes."""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autosync.environment import host_name
from autosync.runtime.hooks.torch_compile import is_compiled

Wrapping = Literal["ddp", "fsdp2", "none"]

INTERFACE_VARIABLES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}
INTERFACES = Path("/sys/class/net")
VIRTUAL = ("lo", "docker", "veth", "br-", "virbr", "ifb", "cni", "flannel")
"""How the names of interfaces begin that lead to no other host."""


@dataclass(frozen=True, slots=True)
class DdpFacts:
    """bucket_bytes: of each bucket, in the order of the last iteration; empty before the first.
    unused_bytes: of parameters that the last iteration did not use."""

    find_unused_parameters: bool
    gradient_as_bucket_view: bool
    static_graph: bool
    bucket_cap_bytes: int
    bucket_bytes: tuple[int, ...]
    unused_bytes: int


@dataclass(frozen=True, slots=True)
class JobFacts:
    """compiled: whether the model is compiled as a whole. interface: that the backend takes, with
    its Gbit/s where the system states it (None: it does not), or empty where it cannot be told.
    others_gbps: of interfaces that are up, by name. nccl_sockets: NCCL's variables for sockets that
    are set."""

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


def unwrapped(model: nn.Module) -> nn.Module:
    """What DDP wraps, or the model itself."""
    inner = getattr(model, "_orig_mod", model)  # of torch.compile
    return inner.module if isinstance(inner, DistributedDataParallel) else inner


def wrapping_of(model: nn.Module) -> Wrapping:
    """How torch synchronizes the model, if it does."""
    inner = getattr(model, "_orig_mod", model)
    if isinstance(inner, DistributedDataParallel):
        return "ddp"
    kinds = {kind.__name__ for each in inner.modules() for kind in type(each).__mro__}
    return "fsdp2" if "FSDPModule" in kinds else "none"


def facts_of(model: nn.Module) -> JobFacts:
    """Of this rank, once torch.distributed is initialized and an iteration has run."""
    inner = unwrapped(model)
    parameters = [p for p in inner.parameters() if p.requires_grad]
    device = parameters[0].device if parameters else torch.device("cpu")
    group = dist.group.WORLD
    assert group is not None
    backend = str(group._get_backend(device).name()).lower()
    interface, gbps, others = _interfaces(backend)
    return JobFacts(
        dist.get_rank(),
        host_name(),
        wrapping_of(model),
        device.type,
        backend,
        is_compiled(model) or is_compiled(inner),
        sum(p.nbytes for p in parameters),
        _ddp_facts(getattr(model, "_orig_mod", model)),
        interface,
        gbps,
        others,
        tuple(
            name for name in os.environ if name in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
        ),
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
        bool(model.static_graph),
        int(model.bucket_bytes_cap),
        tuple(int(part) for part in found if part.isdigit()),
        int(logged.get("unused_parameter_size") or 0),
    )


def _interfaces(backend: str) -> tuple[str, float | None, tuple[tuple[str, float], ...]]:
    """That of the backend, its rate, and the rates of all others that are up."""
    rates = {path.name: _gbps(path) for path in _up_interfaces()}
    named = os.environ.get(INTERFACE_VARIABLES.get(backend, ""), "").lstrip("=^").split(",")[0]
    chosen = next((name for name in rates if named and name.startswith(named)), "")
    if not chosen and not named:
        chosen = _interface_of(_own_address())
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
