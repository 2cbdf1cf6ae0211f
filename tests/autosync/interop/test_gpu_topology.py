"""What `nvidia-smi topo -m` prints."""

import pytest

from autosync.cluster.devices import DEVICE_TYPES
from autosync.errors import InvalidInput
from autosync.interop.gpu_topology import GpuTopology, read_topology

DGX_A100 = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV12\tNV12\tPXB\tSYS\t0-63\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tNV12\tPXB\tSYS\t0-63\t0\t\tN/A\n"
    "GPU2\tNV12\tNV12\t X \tSYS\tPXB\t64-127\t1\t\tN/A\n"
    "NIC0\tPXB\tPXB\tSYS\t X \tSYS\n"
    "NIC1\tSYS\tSYS\tPXB\tSYS\t X \n"
    "\n"
    "Legend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
    "NIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n"
)


def matrix(*rows: str) -> str:
    header = " ".join(f"GPU{i}" for i in range(len(rows)))
    return "\n".join([header, *(f"GPU{i} {row}" for i, row in enumerate(rows))])


PAIRS = matrix("X NV4 SYS SYS", "NV4 X SYS SYS", "SYS SYS X NV4", "SYS SYS NV4 X")


def test_switched_and_direct_links_add_up_and_a_bridge_between_pairs_leaves_pcie() -> None:
    switched = read_topology(DGX_A100, "topo.txt")
    assert (switched.gpus, switched.nics) == (3, 2)
    assert switched.intra_bandwidth_gbps("a100") == pytest.approx(12 * 200 * 0.78)
    mesh = matrix("X NV4 NV4 NV4", "NV4 X NV4 NV4", "NV4 NV4 X NV4", "NV4 NV4 NV4 X")
    assert read_topology(mesh, "t").intra_bandwidth_gbps("a100") == pytest.approx(12 * 200 * 0.78)
    square = matrix("X NV2 NV1 SYS", "NV2 X SYS NV1", "NV1 SYS X NV2", "SYS NV1 NV2 X")
    assert read_topology(square, "t").intra_bandwidth_gbps("v100") == pytest.approx(468.0)
    assert read_topology(PAIRS, "t").intra_bandwidth_gbps("a100") == pytest.approx(105.8)
    plain = matrix("X PHB", "PHB X")
    assert read_topology(plain, "t").intra_bandwidth_gbps("rtx-2080-ti") == pytest.approx(52.9)
    with pytest.raises(InvalidInput, match="12 NVLinks a GPU, a t4 has 0"):
        read_topology(DGX_A100, "t").intra_bandwidth_gbps("t4")


def test_a_bridge_of_two_cards_and_bridges_of_pairs() -> None:
    for kind in ("rtx-3090", "rtx-a6000", "a40"):
        seen = read_topology(matrix("X NV4", "NV4 X"), "t")
        assert seen.intra_bandwidth_gbps(kind) == pytest.approx(4 * 112.5 * 0.78)
        assert seen.notes_on_rate(kind) == []
        seen = read_topology(PAIRS, "t")
        assert seen.intra_bandwidth_gbps(kind) == pytest.approx(105.8)
        (note,) = seen.notes_on_rate(kind)
        assert "NVLinks join only some of the GPUs" in note
        assert read_topology(matrix("X PHB", "PHB X"), "t").notes_on_rate(kind) == []
    (note,) = read_topology(matrix("X SYS", "SYS X"), "t").notes_on_rate("a100")
    assert "no NVLink, a a100 has 12"


def gpus_and_ports(to_ports: list[list[str]], gpu_link: str = "NV18") -> str:
    """The matrix of GPUs with these paths to ports, without the ports' own rows' paths."""
    gpus, ports = len(to_ports), len(to_ports[0])
    names = [f"NIC{i}" for i in range(ports)]
    head = [*(f"GPU{i}" for i in range(gpus)), *names]
    lines = ["\t" + "\t".join(head) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"]
    for gpu, paths in enumerate(to_ports):
        links = [" X " if gpu == other else gpu_link for other in range(gpus)]
        lines.append("\t".join([f"GPU{gpu}", *links, *paths, "0-55,112-167", "0", "", "N/A"]))
    for port, name in enumerate(names):
        own = [" X " if port == other else "SYS" for other in range(ports)]
        lines.append("\t".join([name, *(row[port] for row in to_ports), *own]))
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", "  NV#  = NVLinks"])


def beside(gpus: int, ports: dict[int, int], extra: dict[int, str], count: int) -> list[list[str]]:
    """Paths of each GPU to `count` ports: PXB to those of `ports` (port to GPU), as `extra` says
    to others, otherwise NODE within a half of the GPUs and SYS to the other half."""

    def path(gpu: int, port: int) -> str:
        if port in extra:
            return extra[port]
        if ports[port] == gpu:
            return "PXB"
        return "NODE" if (ports[port] < gpus // 2) == (gpu < gpus // 2) else "SYS"

    return [[path(gpu, port) for port in range(count)] for gpu in range(gpus)]


@pytest.mark.parametrize(
    ("to_ports", "serving", "left"),
    [
        # eight rails, and storage and management ports elsewhere on the host
        (beside(8, {i: i for i in range(8)}, {8: "NODE", 9: "SYS", 10: "NODE"}, 11), 8, "NIC8"),
        (beside(8, {i + 1: i for i in range(8)}, {0: "SYS", 9: "SYS"}, 10), 8, "NIC0, NIC9"),
        # one port for two GPUs each
        ([["PXB", "SYS", "NODE"], ["PXB", "SYS", "NODE"], ["SYS", "PXB", "NODE"]], 2, "NIC2"),
        # a storage port behind the same switches, further than the GPU's own
        ([["PIX", "PXB", "PXB"], ["PXB", "PIX", "PXB"]], 2, "NIC2"),
        # both ports of a card
        ([["PXB", "PXB", "SYS"], ["PXB", "PXB", "SYS"]], 2, "NIC2"),
        # some GPUs have no port beside them
        ([["PXB", "NODE"], ["NODE", "PXB"], ["NODE", "NODE"], ["NODE", "NODE"]], 2, ""),
    ],
)
def test_ports_that_are_beside_a_gpu_count(
    to_ports: list[list[str]], serving: int, left: str
) -> None:
    seen = read_topology(gpus_and_ports(to_ports), "t")
    assert seen.nics == serving
    assert bool(seen.port_notes) == bool(left)
    assert all(left in note for note in seen.port_notes)


def test_ports_on_no_switch_with_a_gpu_are_told() -> None:
    seen = read_topology(gpus_and_ports([["NODE", "SYS"], ["SYS", "NODE"]], "SYS"), "t")
    assert seen.nics == 2
    (note,) = seen.port_notes
    assert "no port shares a PCIe switch" in note
    none = read_topology(matrix("X NV12", "NV12 X"), "t")
    assert (none.nics, none.port_notes) == (0, ())


def test_truncated_tables_are_reported_or_refused() -> None:
    text = gpus_and_ports(beside(8, {i: i for i in range(8)}, {8: "NODE", 9: "SYS"}, 10))
    rows_cut = read_topology(text[: text.index("\nNIC6")], "t")
    assert rows_cut.nics == 8
    assert "t is cut: it has no row of NIC6, NIC7, NIC8, NIC9" in rows_cut.port_notes
    header, rest = text.split("\n", 1)
    for cut in (
        header[: header.index("NIC6")] + "\n" + rest,
        header[:-1].replace("NIC9", "") + "\n" + rest,
    ):
        with pytest.raises(InvalidInput, match="GPU0 has 10 links to ports, but the header names"):
            read_topology(cut, "t")


@pytest.mark.parametrize(
    "code", ["\x1b[4m", "[4m", "^[[4m", "\\x1b[4m", "\\033[4m", "\ufffd[4m", "4m"]
)
def test_codes_of_a_terminal_are_left_out(code: str) -> None:
    end = "" if code == "4m" else code.replace("4", "0")
    text = DGX_A100.replace("\x1b[4m", code).replace("\x1b[0m", end)
    assert read_topology(text, "t") == read_topology(DGX_A100, "t")


def test_a_matrix_without_nvlinks_says_so() -> None:
    """`topo -mp` shows paths through PCIe only, and its legend explains no NV#."""
    legend = "\n\nLegend:\n\n  X    = Self\n  SYS  = ...\n  PIX  = ...\n"
    seen = read_topology(matrix("X SYS", "SYS X") + legend, "t")
    with pytest.raises(InvalidInput, match="shows no NVLink: a h100 has 18") as refused:
        seen.intra_bandwidth_gbps("h100")
    assert "topo -m`" in refused.value.remedy
    assert "--intra-gbps" in refused.value.remedy
    assert seen.intra_bandwidth_gbps("t4") == pytest.approx(52.9)
    assert seen.notes_on_rate("t4") == []
    (note,) = seen.notes_on_rate("rtx-3090")
    assert "shows no NVLink bridge" in note
    explained = read_topology(matrix("X SYS", "SYS X") + legend + "  NV#  = ...\n", "t")
    assert explained.intra_bandwidth_gbps("h100") == pytest.approx(211.7)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no header"),
        ("GPU0 GPU2\n", "no header"),
        ("GPU0 GPU1\nGPU0 X NV1\n", "2 columns of GPUs, but 1 rows"),
        ("GPU0 GPU1\nGPU1 NV1 X\n", "line 2: is no row of GPU0"),
        ("GPU0 GPU1\nGPU0 X\n", "line 2: is no row of GPU0"),
        ("GPU0 GPU1\nGPU0 X FAST\nGPU1 NV1 X\n", "line 2: 'FAST' is no link"),
        ("GPU0 GPU1\nGPU0 NV1 X\nGPU1 X NV1\n", "is no link of GPU0 to GPU0"),
        ("GPU0 GPU1\nGPU0 X NV2\nGPU1 NV1 X\n", "differs from that of"),
        (" ".join(f"GPU{i}" for i in range(65)), "more than 64 GPUs"),
        ("x" * 1_000_001, "larger than"),
    ],
)
def test_malformed_topologies_name_the_line(text: str, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_topology(text, "topo.txt")
    assert words in refused.value.message
    assert refused.value.thing.startswith("topo.txt")


def every_pair(gpus: int, links: int) -> GpuTopology:
    return GpuTopology(
        tuple(tuple(links * (i != j) for j in range(gpus)) for i in range(gpus)), nics=gpus
    )


@pytest.mark.parametrize(
    ("seen", "kind", "switched", "link"),
    [
        (every_pair(8, 18), "h100", True, ""),
        (every_pair(4, 18), "h100", True, ""),
        (every_pair(4, 4), "a100", False, ""),  # each pair by links of its own
        (every_pair(2, 12), "a100", False, ""),  # all links between two: no switch need be there
        (every_pair(2, 4), "rtx-3090", False, "nvlink"),  # a bridge
        (every_pair(8, 0), "a100", False, "pcie"),
        (every_pair(8, 0), "l4", False, ""),
    ],
)
def test_a_switch_shows_all_links_of_a_gpu_to_each_other(
    seen: GpuTopology, kind: str, switched: bool, link: str
) -> None:
    assert seen.switched(DEVICE_TYPES[kind].nvlinks) == switched
    assert seen.gpu_link(kind) == link


def test_gpus_beside_ports_of_their_own_are_on_rails() -> None:
    assert read_topology(gpus_and_ports([["PXB", "SYS"], ["SYS", "PXB"]]), "t").rails
    assert not read_topology(gpus_and_ports([["PXB", "SYS"], ["NODE", "SYS"]]), "t").rails
    assert not read_topology(matrix("X NV12", "NV12 X"), "t").rails
