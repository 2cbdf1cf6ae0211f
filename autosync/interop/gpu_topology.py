"""What `nvidia-smi topo -m` prints: the GPUs of a host, their NICs, and the links between them."""

import re
from dataclasses import dataclass

from autosync.cluster_file import MAX_BYTES
from autosync.devices import DEVICE_TYPES
from autosync.errors import InvalidInput

MAX_GPUS = 64
LINK = re.compile(r"X|NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC")
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
"""The header is underlined, also where it is written into a file."""

NVLINK_SHARE = 0.78
"""Of NVLink's rate that an all-reduce's payload reaches: 235 of 300 GB/s on a DGX A100
(nccl-tests, bus bandwidth)."""
PCIE_SHARE = 0.42
"""Of a slot's rate, without peer-to-peer: 52.9 of 126 Gbit/s, fitted to nodes of four RTX 2080 Ti
(docs/gpu-clusters.md)."""


@dataclass(frozen=True, slots=True)
class GpuTopology:
    """links: `(gpus, gpus)`, NVLinks between two GPUs; 0 where they talk by PCIe. nics: rows of
    InfiniBand or RoCE ports."""

    links: tuple[tuple[int, ...], ...]
    nics: int

    @property
    def gpus(self) -> int:
        return len(self.links)

    def nvlinks(self, most: int) -> int:
        """NVLinks that a GPU's ring can use, of the GPU that has the fewest; 0 where some GPUs are
        reached by PCIe only. most: that one GPU has. Where a row adds up to more, a switch joins
        them, and each pair shows all links of a GPU; otherwise each shows its own."""
        if not self._connected():
            return 0
        alone = [sum(row) if sum(row) <= most else max(row) for row in self.links]
        return min(alone)

    def _connected(self) -> bool:
        reached, waiting = {0}, [0]
        while waiting:
            row = self.links[waiting.pop()]
            new = {other for other, links in enumerate(row) if links} - reached
            reached |= new
            waiting += new
        return len(reached) == self.gpus

    def intra_bandwidth_gbps(self, device_type: str) -> float:
        """Payload rate between GPUs of that type, an estimate from data sheets.

        Raises:
            InvalidInput: NVLinks show that the type has not.
        """
        device = DEVICE_TYPES[device_type]
        if not (links := self.nvlinks(device.nvlinks)):
            return round(device.pcie_gbps * PCIE_SHARE, 1)
        if links > device.nvlinks:
            raise InvalidInput(
                f"the topology shows {links} NVLinks a GPU, a {device_type} has {device.nvlinks}.",
                thing="device type",
                value=device_type,
                remedy="Name another type, or state the bandwidth between the GPUs.",
            )
        return round(links * device.nvlink_gbps * NVLINK_SHARE, 1)


def read_topology(text: str, source: str) -> GpuTopology:
    """The matrix of `nvidia-smi topo -m`; what follows it (the legend) is not read.

    Raises:
        InvalidInput: names the line.
    """
    if len(text) > MAX_BYTES:
        raise _refused(source, f"is larger than {MAX_BYTES // 1000} kB")
    lines = [ESCAPE.sub("", line) for line in text.splitlines()]
    headers = [place for place, line in enumerate(lines) if _gpu_columns(line)]
    if not headers:
        raise _refused(source, "has no header GPU0 GPU1 ...")
    start = headers[0]
    count = _gpu_columns(lines[start])
    if count > MAX_GPUS:
        raise _refused(source, f"shows more than {MAX_GPUS} GPUs")
    rows: list[tuple[int, ...]] = []
    nics = 0
    for number, line in enumerate(lines[start + 1 :], start + 2):
        words = line.split()
        if len(rows) < count:
            rows.append(_row(words, len(rows), count, f"{source}, line {number}"))
        elif words and re.fullmatch(r"(NIC|mlx|hfi|bnxt|efa|rdma)[A-Za-z0-9_]*", words[0]):
            nics += 1
        elif not words or words[0].startswith("Legend"):
            break
    if len(rows) < count:
        raise _refused(source, f"has {count} columns of GPUs, but {len(rows)} rows")
    for i, row in enumerate(rows):
        for j in range(i):
            if row[j] != rows[j][i]:
                raise _refused(source, f"GPU{j} and GPU{i} are linked otherwise one way")
    return GpuTopology(tuple(rows), nics)


def _gpu_columns(line: str) -> int:
    """How many GPUs the header names; 0 where the line is none."""
    named = [word for word in line.split() if re.fullmatch(r"GPU[0-9]{1,3}", word)]
    numbered = all(name == f"GPU{place}" for place, name in enumerate(named))
    return len(named) if numbered else 0


def _row(words: list[str], gpu: int, count: int, where: str) -> tuple[int, ...]:
    if not words or words[0] != f"GPU{gpu}" or len(words) <= count:
        raise _refused(where, f"is no row of GPU{gpu} with {count} links")
    row = []
    for other, word in enumerate(words[1 : count + 1]):
        if not LINK.fullmatch(word) or (word == "X") != (other == gpu):
            raise _refused(where, f"{word[:20]!r} is no link of GPU{gpu} to GPU{other}")
        row.append(int(word[2:]) if word.startswith("NV") else 0)
    return tuple(row)


def _refused(where: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"{where}: {why}.",
        thing=where,
        value=why,
        remedy="Give it what `nvidia-smi topo -m` prints, whole.",
    )
