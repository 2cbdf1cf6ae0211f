"""A budget of bytes that are really there, and really gone."""

import gc

import pytest
import torch
from torch import nn

from autosync.errors import DeviceMemoryExceeded
from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.device import ThreadTransfers

KIB = 1024


def test_it_counts_storages_while_they_live() -> None:
    with Arena(10 * KIB) as arena:
        first = torch.zeros(KIB)
        assert arena.allocated_bytes() == 4 * KIB
        view, also = first[:10], first.view(2, -1)
        assert arena.allocated_bytes() == 4 * KIB
        del first
        assert arena.allocated_bytes() == 4 * KIB  # its views hold it
        del view, also
        assert arena.allocated_bytes() == 0
        assert arena.take_peak_bytes() == 4 * KIB
        assert arena.take_peak_bytes() == 0


def test_saved_activations_count_until_backward_has_run() -> None:
    layers = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    batch = torch.zeros(64, 16)
    with Arena(1 << 20) as arena:
        arena.count(layers.parameters())
        begin = arena.allocated_bytes()
        loss = layers(batch).sum()
        held = arena.allocated_bytes() - begin
        assert held >= 64 * 16 * 4  # tanh's result, which the second layer multiplies
        loss.backward()
        del loss
        gc.collect()
        gradients = sum(p.numel() * 4 for p in layers.parameters())
        assert arena.allocated_bytes() - begin == gradients


def test_overflow_is_an_error_that_names_the_operation() -> None:
    held = []
    with Arena(10 * KIB) as arena:
        held.append(torch.zeros(KIB))
        held.append(torch.zeros(KIB))
        with pytest.raises(DeviceMemoryExceeded, match=r"aten.zeros.* 12,288 bytes of 10,240"):
            torch.zeros(KIB)
        gc.collect()
        assert arena.allocated_bytes() == 8 * KIB  # what was too much is gone


def test_memory_of_the_host_does_not_count() -> None:
    with Arena(KIB) as arena:
        with arena.host_memory():
            elsewhere = torch.zeros(KIB)
        assert arena.allocated_bytes() == 0
    assert elsewhere.numel() == KIB


def test_a_model_from_before_counts_and_may_be_too_large() -> None:
    model = nn.Linear(16, 16, bias=False)
    with Arena(KIB) as arena:
        arena.count(model.parameters())
        assert arena.allocated_bytes() == KIB
    with Arena(KIB - 1) as arena, pytest.raises(DeviceMemoryExceeded, match="before"):
        arena.count(model.parameters())


def test_a_storage_that_grows_counts_with_its_new_size() -> None:
    with Arena(1 << 20) as arena:
        tensor = torch.zeros(KIB)
        tensor.resize_(2 * KIB)
        assert arena.allocated_bytes() == 8 * KIB
        del tensor
        assert arena.allocated_bytes() == 0


def test_a_default_device_of_the_script_does_not_make_host_buffers() -> None:
    with torch.device("meta"):
        assert torch.empty(8).device.type == "meta"
        assert ThreadTransfers(float("inf")).host_buffer(8).device.type == "cpu"
