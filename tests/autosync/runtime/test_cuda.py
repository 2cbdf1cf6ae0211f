"""Accelerators: plans do not run there yet, and say so before the first message."""

from collections.abc import Iterator

import pytest
import torch

from autosync.errors import NotSupported
from autosync.runtime.attach import attach
from tests.autosync.runtime.cases import Case, make_model, make_optimizer, plan
from tests.autosync.runtime.ranks import Ranks, ranks


@pytest.fixture(scope="module")
def pair() -> Iterator[Ranks]:
    with ranks(2) as made:
        yield made


def refused(rank: int, world: int, device: str) -> str:
    model = make_model("mlp").to(device)
    optimizer = make_optimizer("sgd", model)
    names = tuple(name for name, _ in model.named_parameters())
    try:
        attach(model, optimizer, plan(Case(), make_model("mlp"), world), names)
    except NotSupported as error:
        return f"{error} {error.remedy}"
    return ""


def check_refusal(pair: Ranks, device: str) -> None:
    for answer in pair.run(refused, device):
        assert f"'0.weight' is on {device}" in answer
        assert "`ddp`" in answer


def test_another_device_is_refused_by_name(pair: Ranks) -> None:
    check_refusal(pair, "meta")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no NVIDIA GPU")
def test_a_gpu_is_refused_by_name(pair: Ranks) -> None:
    check_refusal(pair, "cuda:0")
