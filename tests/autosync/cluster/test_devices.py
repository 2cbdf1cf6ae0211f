"""A GPU's device type: by its name, or as the user states it."""

import re

import pytest

from autosync.cluster.devices import DEVICE_TYPES, device_type_of_gpu
from autosync.errors import InvalidInput, NotSupported


@pytest.mark.parametrize(
    ("name", "device_type"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("NVIDIA GeForce GTX TITAN X", "titan-x"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 144G HBM3e", "gh200"),
        ("NVIDIA GB10", "gb10"),
        ("NVIDIA H20", "h20"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_a_known_name(name: str, device_type: str) -> None:
    assert device_type_of_gpu(name) == device_type


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA R100",
        "NVIDIA T400 4GB",
        "Quadro P1000",
        "NVIDIA TITAN X (Pascal)",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    ],
)
def test_an_unknown_name_is_refused_with_the_way_out(name: str) -> None:
    words = re.escape(f"GPU {name!r} is of no known device type")
    with pytest.raises(NotSupported, match=words) as refused:
        device_type_of_gpu(name)
    assert "as device_type" in refused.value.remedy
    assert "h100" in refused.value.remedy
    assert device_type_of_gpu(name, stated="a100") == "a100"


@pytest.mark.parametrize("stated", ["cpu", "abacus", ""])
def test_a_stated_device_type_must_be_a_gpu(stated: str) -> None:
    with pytest.raises(InvalidInput, match="is the type of no GPU"):
        device_type_of_gpu("NVIDIA H100 80GB HBM3", stated)


def test_every_gpu_type_is_found_by_its_own_name() -> None:
    for kind, device in DEVICE_TYPES.items():
        if device.is_gpu:
            assert device_type_of_gpu(f"NVIDIA {kind.upper()}") == kind


def test_every_gpu_states_year_source_and_sound_figures() -> None:
    for kind, device in DEVICE_TYPES.items():
        if not device.is_gpu:
            continue
        assert 2013 <= device.year <= 2025, kind
        assert device.source, kind
        peaks = [device.peak_flops_per_second, device.fp16, device.fp8]
        assert [p for p in peaks if p] == sorted(p for p in peaks if p), kind
        assert device.bf16 in (0, device.fp16), kind
        assert 1e11 < device.memory_bytes_per_second < 1e13, kind
        assert bool(device.nvlinks) == bool(device.nvlink_gbps), kind
        assert device.nvlinks or not device.nvlink_bridge, kind


def test_a_type_without_units_of_its_own_computes_as_float32() -> None:
    assert DEVICE_TYPES["a100"].flops_per_second("bfloat16") == 3.12e14
    assert DEVICE_TYPES["a100"].flops_per_second("float32") == 1.56e14
    assert DEVICE_TYPES["t4"].flops_per_second("bfloat16") == 8.1e12
    assert DEVICE_TYPES["k80"].flops_per_second("float16") == 4.1e12
