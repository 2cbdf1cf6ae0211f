"""What `nvidia-smi topo -m` prints: the GPUs of a host, their NICs, and the links between them."""

import re
from dataclasses import dataclass
from functools import partial
from typing import Literal

from autosync.cluster.cluster_file import MAX_BYTES
from autosync.cluster.devices import DEVICE_TYPES
from autosync.cluster.link_rates import NVLINK_SHARE, PCIE_SHARE
from autosync.errors import InvalidInput
from autosync.interop import refused_file

_refused = partial(refused_file, remedy="Give it what `nvidia-smi topo -m` prints, whole.")


MAX_GPUS = 64
NEARNESS = ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC")
"""Paths through PCIe, nearest first: one switch, several, a host bridge, a NUMA node, the host."""
BESIDE = ("PIX", "PXB")
"""A port so near to a GPU shares a PCIe switch with it: it carries that GPU's messages."""
LINK = re.compile(rf"X|NV[0-9]{{1,3}}|{'|'.join(NEARNESS)}")
ESCAPE = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]"  # whole
    r"|(?:\x1b|\x9b|\ufffd|\u241b|\^\[|\\(?:x1b|e|033))?\[[0-9;]*[mK](?![a-z])"  # no escape byte
    r"|\b[0-9;]{1,5}m(?=GPU[0-9])"  # no bracket either
)
"""The header is underlined, also where it is written into a file. Logs and web pages keep the
codes without the escape byte, or show it as text."""


@dataclass(frozen=True, slots=True)
class GpuTopology:
    """links: `(gpus, gpus)`, NVLinks between two GPUs; 0 where they talk by PCIe. nics: InfiniBand
    or RoCE ports that serve the GPUs. port_notes: what must be known of their count, a sentence
    each. pcie_only: the matrix of `topo -mp`, which shows no NVLink. rails: each GPU shares a PCIe
    switch with a port."""

    links: tuple[tuple[int, ...], ...]
    nics: int
    port_notes: tuple[str, ...] = ()
    pcie_only: bool = False
    rails: bool = False

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

    def switched(self, most: int) -> bool:
        """Whether an NVSwitch joins the GPUs: each pair shows as many NVLinks, of which a GPU with
        one for each other would have more than `most`."""
        pairs = {links for i, row in enumerate(self.links) for j, links in enumerate(row) if i != j}
        return len(pairs) == 1 and 0 < min(pairs) <= most < min(pairs) * (self.gpus - 1)

    def gpu_link(self, device_type: str) -> Literal["", "nvlink", "pcie"]:
        """What joins the GPUs, where that is not what their type has."""
        device = DEVICE_TYPES[device_type]
        if self.nvlinks(device.nvlinks):
            return "nvlink" if device.nvlink_bridge else ""
        hidden = self.pcie_only and device.nvlinks and not device.nvlink_bridge
        return "pcie" if device.nvlinks and not device.nvlink_bridge and not hidden else ""

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
            InvalidInput: the matrix shows more NVLinks than the type has, or hides those that it
                has (`topo -mp`).
        """
        device = DEVICE_TYPES[device_type]
        if self.pcie_only and device.nvlinks and not device.nvlink_bridge:
            raise InvalidInput(
                f"the topology is that of `nvidia-smi topo -mp`, which shows no NVLink: a "
                f"{device_type} has {device.nvlinks}.",
                thing="topology",
                value="topo -mp",
                remedy="Give it what `nvidia-smi topo -m` prints, or state the bandwidth between "
                "the GPUs (--intra-gbps).",
            )
        if not (links := self.nvlinks(device.nvlinks)):
            return round(device.pcie_gbps * PCIE_SHARE, 1)
        if links > device.nvlinks:
            raise InvalidInput(
                f"the topology shows {links} NVLinks a GPU, a {device_type} has {device.nvlinks}.",
                thing="device type",
                value=device_type,
                remedy="Name another type (--device), or state the bandwidth between the GPUs "
                "(--intra-gbps).",
            )
        return round(links * device.nvlink_gbps * NVLINK_SHARE, 1)

    def notes_on_rate(self, device_type: str) -> list[str]:
        """What must be known of the estimate for that type, a sentence each."""
        device = DEVICE_TYPES[device_type]
        if not device.nvlinks or self.nvlinks(device.nvlinks):
            return []
        rate = f"the rate between GPUs is that of PCIe, {self.intra_bandwidth_gbps(device_type):g} "
        rate += "Gbit/s (--intra-gbps states another)"
        if any(any(row) for row in self.links):
            return [
                f"NVLinks join only some of the GPUs, a ring over all of them uses PCIe: {rate}"
            ]
        if self.pcie_only:
            return [f"`nvidia-smi topo -mp` shows no NVLink bridge, `topo -m` does: {rate}"]
        if device.nvlink_bridge:
            return []
        return [f"the topology shows no NVLink, a {device_type} has {device.nvlinks}: {rate}"]


def read_topology(text: str, source: str) -> GpuTopology:
    """The matrix of `nvidia-smi topo -m`. Of what follows it, only whether the legend explains NV#
    is read, which the legend of `topo -mp` does not.

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
    ports = _port_columns(lines[start].split()[count:])
    matrix = lines[start + 1 : start + 1 + count]
    rows = [
        _row(line.split(), gpu, count, len(ports), f"{source}, line {start + 2 + gpu}")
        for gpu, line in enumerate(matrix)
    ]
    if len(rows) < count:
        raise _refused(source, f"has {count} columns of GPUs, but {len(rows)} rows")
    for i, row in enumerate(rows):
        for j in range(i):
            if row[j] != rows[j][i]:
                raise _refused(
                    source, f"the link of GPU{j} to GPU{i} differs from that of GPU{i} to GPU{j}"
                )
    links = tuple(
        tuple(int(word[2:]) if word.startswith("NV") else 0 for word in row[:count]) for row in rows
    )
    after = [line.strip() for line in lines[start + 1 + count :]]
    serving, notes = _serving_ports(ports, [row[count:] for row in rows])
    if missing := set(ports) - {line.split()[0] for line in after if line}:
        notes.append(f"{source} is cut: it has no row of {', '.join(sorted(missing)[:8])}")
    explained = [line for line in after if re.match(r"(X|SYS|NODE|PHB|PXB|PIX|NV#) +=", line)]
    pcie_only = bool(explained) and not any(line.startswith("NV#") for line in explained)
    hides = pcie_only and not any(any(row) for row in links)
    near = bool(rows) and all(any(word in BESIDE for word in row[count:]) for row in rows)
    return GpuTopology(links, serving, tuple(notes), hides, near)


def _gpu_columns(line: str) -> int:
    """How many GPUs the header names; 0 where the line is none."""
    named = [word for word in line.split() if re.fullmatch(r"GPU[0-9]{1,3}", word)]
    numbered = all(name == f"GPU{place}" for place, name in enumerate(named))
    return len(named) if numbered and line.split()[: len(named)] == named else 0


def _port_columns(words: list[str]) -> list[str]:
    """The ports (NIC0, mlx5_0, ...) that the header names between the GPUs and `CPU Affinity`."""
    end = next((i for i, word in enumerate(words) if word in ("CPU", "NUMA", "GPU")), len(words))
    return words[:end]


def _row(words: list[str], gpu: int, count: int, ports: int, where: str) -> list[str]:
    """The links of one GPU: to each GPU, and to each port."""
    if not words or words[0] != f"GPU{gpu}" or len(words) <= count:
        raise _refused(where, f"is no row of GPU{gpu} with {count} links")
    for other, word in enumerate(words[1 : count + 1]):
        if not LINK.fullmatch(word) or (word == "X") != (other == gpu):
            raise _refused(where, f"{word[:20]!r} is no link of GPU{gpu} to GPU{other}")
    beyond = words[count + 1 :]
    to_ports = next((i for i, word in enumerate(beyond) if word not in NEARNESS), len(beyond))
    if to_ports != ports:
        why = f"GPU{gpu} has {to_ports} links to ports, but the header names {ports}"
        raise _refused(where, why)
    return words[1 : count + 1] + beyond[:ports]


def _serving_ports(ports: list[str], rows: list[list[str]]) -> tuple[int, list[str]]:
    """How many ports carry the GPUs' messages: those that are nearest to some GPU and share a PCIe
    switch with it. Without any such port, those that are nearest to some GPU."""
    nearest: dict[str, set[int]] = {}
    for row in rows:
        if row:
            least = min(row, key=NEARNESS.index)
            nearest.setdefault(least, set()).update(i for i, w in enumerate(row) if w == least)
    beside = set().union(*(nearest.get(word, set()) for word in BESIDE))
    serving = beside or set().union(*nearest.values())
    notes = []
    if left := [name for place, name in enumerate(ports) if place not in serving]:
        names = ", ".join(left[:8]) + (", ..." if len(left) > 8 else "")
        notes.append(
            f"{len(serving)} of {len(ports)} ports are counted: {names} "
            f"{'are' if len(left) > 1 else 'is'} nearest to no GPU (storage or management); "
            "--nics states another count"
        )
    if serving and not beside:
        notes.append(
            f"no port shares a PCIe switch with a GPU: all {len(serving)} that are nearest to one "
            "are counted, storage and management among them; --nics states another count"
        )
    return len(serving), notes
