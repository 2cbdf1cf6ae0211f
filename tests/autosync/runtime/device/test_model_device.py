"""Which devices a model may be on, and what is warned of."""

import warnings

import pytest

from autosync.runtime.attachment import attach
from autosync.runtime.device.model_tensors import QUEUES, UNVERIFIED, _warn_once, warn_of_backend
from tests.autosync.runtime.cases import Case, make_model, make_optimizer, plan
from tests.autosync.runtime.device.gpus import on_real_gpus
from tests.autosync.runtime.distributing import refusal
from tests.autosync.runtime.parts import linear
from tests.autosync.runtime.ranks import Ranks


def refused(rank: int, world: int, device: str, of: str) -> str:
    model = make_model("mlp")
    (model if of == "all" else linear(model, 2)).to(device)
    optimizer = make_optimizer("sgd", model)
    names = tuple(name for name, _ in model.named_parameters())
    made = plan(Case(), make_model("mlp"), world)
    return refusal(lambda: attach(model, optimizer, made, names))


def test_another_device_is_refused_by_name(pair: Ranks) -> None:
    for answer in pair.run(refused, "meta", "all"):
        assert "'0.weight' is on meta" in answer
        assert "`ddp`" in answer


@on_real_gpus
def test_a_model_on_two_devices_is_refused_by_name(pair: Ranks) -> None:
    for answer in pair.run(refused, "cuda:0", "one layer"):
        assert "'2.weight' is on cuda:0" in answer
        assert "others are on cpu" in answer


def test_it_warns_once_of_nccl_between_ranks() -> None:
    _warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for backend, world in (("gloo", 2), ("nccl", 1)):
            warn_of_backend(backend, world)
        assert not seen
        warn_of_backend("nccl", 2)
        warn_of_backend("nccl", 2)
    assert [str(one.message) for one in seen] == [UNVERIFIED]


def test_it_warns_where_streams_share_hardware_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    _warn_once.cache_clear()
    with pytest.warns(UserWarning, match="share one GPU"):
        warn_of_backend("nccl", 2)
    monkeypatch.setenv(QUEUES, "8")
    warn_of_backend("nccl", 2)
    monkeypatch.setenv(QUEUES, "1")
    with pytest.warns(UserWarning, match=f"{QUEUES}=1: the GPU's streams share"):
        warn_of_backend("nccl", 2)
