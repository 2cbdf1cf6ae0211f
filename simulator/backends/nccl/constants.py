"""Constants of NCCL's algorithms by class of system.

A class is a link inside a node (nvlink4, pcie4-without-p2p), a generation of GPUs (hopper) or a
transport between nodes (efa). Each of its quantities has a prior, from a data sheet or from the
constants of NCCL's own tuner (src/graph/tuning.cc), a bound, and a width. Where neither says it, it
was set with published sweeps in view (`PEAKS`, `SWEEPS`): leaving these out does not undo that.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, Literal

from pydantic import ConfigDict

from autosync.bundled_data import data_file
from autosync.documents import STRICT, from_json


@dataclass(frozen=True, slots=True)
class Constant:
    """One quantity of one class.

    low, high: its physical bound. width: one standard deviation of its logarithm. source: where it
    stands. measured: how many sweeps set it; 0: it is the prior.
    """

    value: float
    low: float
    high: float
    width: float
    source: str
    measured: int = 0


TUNER = "NCCL, src/graph/tuning.cc: the tuner's constants"
SWEEPS = "no source: set while published sweeps of the transport were compared with predictions"
TCP_CONNECTION = "one connection carried 10 to 15 Gbit/s (PACE, section VI-D; NVIDIA/nccl#209)"
PEAKS = "the peak of an all-reduce over the nominal rate"
HOST_MEMORY = "memory of hosts, and four RTX 2080 Ti (datasets/measurements/rtx-2080-ti.json)"
PROXY = "nodes of one GPU reached 30.6 Gbit/s with eight sockets (NVIDIA/nccl#209)"
PIPELINE = "0: chunks cost nothing; 1: a pipeline whose chunks are as large as is best"

PROTOCOLS = ("ll", "ll128", "simple")

NVLINK_SHARES = {2: 0.87, 3: 0.78, 4: 0.82, 5: 0.77}
NVLS_SHARES = {4: 0.68, 5: 0.60}
PCIE_SHARES = {"": (0.75, 1.0), "-without-p2p": (0.48, 0.5)}
"""Prior and bound: without peer-to-peer every byte passes host memory."""
HOST_GBYTES = {3: 24.0, 4: 100.0, 5: 200.0}
"""What all GPUs of a host of that time pass through its memory at once, where none reaches another:
four RTX 2080 Ti got 6.6 GB/s each (rtx-2080-ti.json); a socket's memory became four times as fast
with PCIe 4.0 hosts."""
TRANSPORT_SHARES = {
    "infiniband": 0.95,
    "roce": 0.95,
    "efa": 0.92,
    "efa-early": 0.85,
    "slingshot": 0.93,
    "gpudirect-tcpx": 0.8,
    "gpudirect-tcpxo": 0.92,
    "tcp": 0.941,
}
TRANSPORT_HOPS_US = {
    "infiniband": 5.0,
    "roce": 6.0,
    "efa": 25.0,
    "efa-early": 60.0,
    "slingshot": 10.0,
    "gpudirect-tcpx": 60.0,
    "gpudirect-tcpxo": 50.0,
    "tcp": 40.0,
}
"""Of LL; LL128 and Simple wait as much longer as NCCL's tuner has it for InfiniBand."""
SIMPLE_HOPS_US = {"gpudirect-tcpx": 400.0, "gpudirect-tcpxo": 400.0}
"""Chunks of Simple that wait for the network's host threads."""
GENERATIONS = ("volta", "ampere", "hopper", "blackwell")


def _seconds(microseconds: float, width: float = 0.4, source: str = TUNER) -> Constant:
    value = microseconds * 1e-6
    return Constant(value, value / 20, value * 20, width, source)


def _share(value: float, width: float, source: str, high: float = 1.0) -> Constant:
    return Constant(value, 0.01, high, width, source)


def _common(hops_us: tuple[float, float, float], source: str = TUNER) -> dict[str, Constant]:
    """What links and transports have alike. source: of the hops."""
    found = {
        f"hop_{protocol}_seconds": _seconds(each, source=source)
        for protocol, each in zip(PROTOCOLS, hops_us, strict=True)
    }
    found["ll_share"] = _share(0.25, 0.3, TUNER)
    found["ll128_share"] = _share(0.85, 0.15, TUNER)
    found["tree_share"] = _share(1.0, 0.1, TUNER, 1.2)
    for protocol in PROTOCOLS:
        found[f"fill_{protocol}"] = _share(0.5, 0.5, PIPELINE, 4.0)
    return found


def _priors() -> dict[tuple[str, str], Constant]:
    classes: dict[str, dict[str, Constant]] = {}
    for number, share in NVLINK_SHARES.items():
        found = _common((0.6, 1.9, 3.4)) | {"share": _share(share, 0.05, PEAKS)}
        if number in NVLS_SHARES:
            found["nvls_share"] = _share(NVLS_SHARES[number], 0.05, PEAKS)
            found["nvls_rack_share"] = _share(0.55, 0.1, PEAKS)
            found["hop_nvls_seconds"] = _seconds(25.0)
            found["fill_nvls"] = _share(0.5, 0.5, PIPELINE, 4.0)
        classes[f"nvlink{number}"] = found
    for number in (3, 4, 5):
        for suffix, (share, most) in PCIE_SHARES.items():
            found = _common((1.0, 2.5, 5.7)) | {"share": _share(share, 0.25, PEAKS, most)}
            if suffix:
                host = HOST_GBYTES[number]
                found["host_gbytes_per_second"] = Constant(host, 5.0, 800.0, 0.3, HOST_MEMORY)
            classes[f"pcie{number}{suffix}"] = found
    for name in GENERATIONS:
        microseconds = zip(PROTOCOLS, (6.7, 14.0, 8.4), strict=True)
        classes[name] = {f"launch_{each}_seconds": _seconds(us) for each, us in microseconds}
    for name, share in TRANSPORT_SHARES.items():
        hop = TRANSPORT_HOPS_US[name]
        hops_us = hop, hop + 3.5, SIMPLE_HOPS_US.get(name, hop + 9.0)
        hops = _common(hops_us, TUNER if name == "infiniband" else SWEEPS)
        classes[name] = hops | {"share": _share(share, 0.08, PEAKS)}
    connection = Constant(1.6, 0.3, 6.0, 0.3, TCP_CONNECTION)
    classes["tcp"]["connection_gbytes_per_second"] = connection
    for name in ("tcp", "efa-early"):
        classes[name]["proxy_gbytes_per_second"] = Constant(3.8, 0.5, 12.0, 0.3, PROXY)
    return {
        (name, quantity): each
        for name, quantities in classes.items()
        for quantity, each in quantities.items()
    }


PRIORS = _priors()


@dataclass(frozen=True, slots=True)
class FittedValue:
    """Of a quantity: its value, one standard deviation of its logarithm, and on how many sweeps its
    class was measured."""

    value: float
    width: float
    measured: int
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class FittedConstants:
    """datasets/nccl/constants.json, as `benchmarks/published/collectives.py --fit` writes it.

    classes: by class, by quantity. interval_scale: by which the widths of predictions are
    multiplied, so that nine of ten rows of left-out systems lie in their intervals.
    """

    classes: dict[str, dict[str, FittedValue]]
    interval_scale: float
    version: Literal[1] = 1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@cache
def fitted_constants() -> FittedConstants:
    """As bundled."""
    path = data_file("nccl", "constants.json")
    return from_json(FittedConstants, path.read_bytes(), source=str(path))


@cache
def constants() -> dict[tuple[str, str], Constant]:
    """All classes' quantities: as fitted, else their priors."""
    found = dict(PRIORS)
    for name, quantities in fitted_constants().classes.items():
        for quantity, each in quantities.items():
            prior = PRIORS[name, quantity]
            found[name, quantity] = replace(
                prior, value=each.value, width=each.width, measured=each.measured
            )
    return found


def constant(name: str, quantity: str) -> Constant:
    """A quantity of a class: as fitted, else its prior."""
    return constants()[name, quantity]
