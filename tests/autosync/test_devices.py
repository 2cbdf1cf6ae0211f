"""A GPU's device type: by its name, or as the user states it."""

import pytest

from autosync.devices import DEVICE_TYPES, device_type_of_gpu
from autosync.errors import InvalidInput, NotSupported


@pytest.mark.parametrize(
    ("name", "device_type"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("NVIDIA TITAN X (Pascal)", "titan-x"),
        ("NVIDIA L4", "l4"),
    ],
)
def test_a_known_name(name: str, device_type: str) -> None:
    assert device_type_of_gpu(name) == device_type


@pytest.mark.parametrize("name", ["NVIDIA L40S", "NVIDIA B200", "NVIDIA T400 4GB", "Quadro P1000"])
def test_an_unknown_name_is_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(NotSupported, match=f"GPU '{name}' is of no known device type") as refused:
        device_type_of_gpu(name)
    assert "as device_type" in refused.value.remedy
    assert "h100" in refused.value.remedy
    assert device_type_of_gpu(name, stated="a100") == "a100"


@pytest.mark.parametrize("stated", ["cpu", "abacus", ""])
def test_what_is_stated_must_be_a_gpu(stated: str) -> None:
    with pytest.raises(InvalidInput, match="is the type of no GPU"):
        device_type_of_gpu("NVIDIA H100 80GB HBM3", stated)


def test_every_gpu_type_is_found_by_its_own_name() -> None:
    for kind, device in DEVICE_TYPES.items():
        if device.is_gpu:
            assert device_type_of_gpu(f"NVIDIA {kind.upper()}") == kind
