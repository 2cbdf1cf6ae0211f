"""What `nvidia-smi topo -m` prints."""

import pytest

from autosync.errors import InvalidInput
from autosync.interop.gpu_topology import read_topology

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


def test_gpus_behind_a_switch_use_all_their_links() -> None:
    seen = read_topology(DGX_A100, "topo.txt")
    assert (seen.gpus, seen.nics) == (3, 2)
    assert seen.intra_bandwidth_gbps("a100") == pytest.approx(12 * 200 * 0.78)


def test_direct_links_add_up_and_a_bridge_between_pairs_leaves_pcie() -> None:
    mesh = matrix("X NV4 NV4 NV4", "NV4 X NV4 NV4", "NV4 NV4 X NV4", "NV4 NV4 NV4 X")
    assert read_topology(mesh, "t").intra_bandwidth_gbps("a100") == pytest.approx(12 * 200 * 0.78)
    square = matrix("X NV2 NV1 SYS", "NV2 X SYS NV1", "NV1 SYS X NV2", "SYS NV1 NV2 X")
    assert read_topology(square, "t").intra_bandwidth_gbps("v100") == pytest.approx(468.0)
    pairs = matrix("X NV4 SYS SYS", "NV4 X SYS SYS", "SYS SYS X NV4", "SYS SYS NV4 X")
    assert read_topology(pairs, "t").intra_bandwidth_gbps("a100") == pytest.approx(105.8)
    plain = matrix("X PHB", "PHB X")
    assert read_topology(plain, "t").intra_bandwidth_gbps("rtx-2080-ti") == pytest.approx(52.9)
    with pytest.raises(InvalidInput, match="12 NVLinks a GPU, a t4 has 0"):
        read_topology(DGX_A100, "t").intra_bandwidth_gbps("t4")


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
        ("GPU0 GPU1\nGPU0 X NV2\nGPU1 NV1 X\n", "otherwise one way"),
        (" ".join(f"GPU{i}" for i in range(65)), "more than 64 GPUs"),
        ("x" * 1_000_001, "larger than"),
    ],
)
def test_what_is_no_topology_names_the_line(text: str, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_topology(text, "topo.txt")
    assert words in refused.value.message
    assert refused.value.thing.startswith("topo.txt")
