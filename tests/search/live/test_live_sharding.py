"""`autosync.tune` in the space `fsdp2`, on the two ranks of a running job that DDP does not fit."""

import gc
import importlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.bundle import load_bundle, make_bundle
from autosync.cluster import Device
from autosync.documents import from_json
from autosync.errors import InvalidInput
from autosync.runtime.updates.clipping import clip_before_step
from autosync.search.designs.torch_engines import fsdp2
from autosync.search.live.sharded_answers import (
    check_untrained,
    no_room_beside_values,
    why_next_run,
)
from autosync.search.loop.earlier_document import EarlierTrials
from autosync.search.loop.settings import Settings
from autosync.search.space import SpaceName
from autosync.simulator.memory.memory_check import most_peak_bytes
from autosync.simulator.sharded_strategy import sharded_by
from autosync.strategy import Encoding
from autosync.trials.contract import TrialRequest
from autosync.trials.live.job_pool import JobPool
from autosync.trials.live.snapshot import take_snapshot
from tests.autosync.runtime.cases import gap
from tests.autosync.runtime.ranks import Ranks, ranks
from tests.domains import domain_of, grid_cluster, layered_graph
from tests.search.live import live_training
from tests.search.live.live_training import (
    EventChecks,
    batch_of,
    fingerprint,
    loss_on,
    refusal_of,
    step_on,
)
from tests.simulator.worked_examples import on_devices

pytestmark = pytest.mark.timeout(300)
SETTINGS = Settings(budget=2, proposals=32, repeats=1, probe=False, warmup=1, iterations=2)
NORM = 0.5
STEPS = 3


@pytest.fixture(scope="module")
def pair() -> Iterator[Ranks]:
    with ranks(2) as pool:
        pool.run(warmed)
        yield pool


def warmed(rank: int, world: int) -> None:
    """Trials collect garbage around every pass: it need not look at the modules of the search."""
    importlib.import_module("autosync.search.live.live_tuning")
    importlib.import_module("torch.distributed.fsdp")
    gc.freeze()


def step_of(rank: int) -> Callable[[nn.Module, torch.optim.Optimizer], None]:
    """DDP runs out of memory, as far as it can see."""
    plain = step_on(batch_of(rank, 0))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if isinstance(model, DistributedDataParallel):
            raise MemoryError
        plain(model, optimizer)

    return step


def made(rank: int, has_state: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = live_training.made(rank)
    return model, optimizer if has_state else torch.optim.AdamW(model.parameters(), lr=1e-3)


def tuned(rank: int, optimizer_has_state: bool, save: Path) -> dict[str, Any]:
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model, optimizer = made(rank, optimizer_has_state)
    before = fingerprint(model, optimizer)
    groups = len(dist.distributed_c10d._world.pg_map)
    events = EventChecks(model, [optimizer])
    seen: dict[str, Any] = {"events": events.messages, "restored": events.restored}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        after, same = autosync.tune(
            step_of(rank),
            model,
            optimizer,
            minutes=5,
            space="fsdp2",
            max_grad_norm=NORM,
            settings=SETTINGS,
            save=save if rank == 0 else None,
            on_event=events,
        )
    gc.collect()
    seen["copies"] = sum(isinstance(each, FSDPModule) for each in gc.get_objects())
    seen["groups"] = len(dist.distributed_c10d._world.pg_map) - groups
    seen["warned"] = " ".join(str(one.message) for one in caught)
    seen["kind"] = "FSDP2" if isinstance(after, FSDPModule) else type(after).__name__
    seen["same"] = same is optimizer and (after is model) == isinstance(after, FSDPModule)
    if optimizer_has_state:
        seen["restored"].append(fingerprint(model, optimizer) == before)
    return seen | {"values": trained(after, same, rank)}


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> list[Tensor]:
    """Whole values after some steps."""
    model.eval()  # no dropout, and no running means, which each rank has of its own
    for number in range(STEPS):
        optimizer.zero_grad()
        loss_on(model, batch_of(rank, number)).backward()
        optimizer.step()
    values: list[Any] = list(model.parameters())
    return [(v.full_tensor() if hasattr(v, "full_tensor") else v).detach() for v in values]


def by_ddp(rank: int, optimizer_has_state: bool) -> list[Tensor]:
    model, optimizer = made(rank, optimizer_has_state)
    wrapped = DistributedDataParallel(model)
    clip_before_step(model, optimizer, NORM)
    return trained(wrapped, optimizer, rank)


def both(rank: int, world: int, optimizer_has_state: bool, save: Path) -> dict[str, Any]:
    seen = tuned(rank, optimizer_has_state, save)
    wanted = by_ddp(rank, optimizer_has_state)
    pairs = zip(seen.pop("values"), wanted, strict=True)
    return seen | {"difference": max(gap(a, b) for a, b in pairs)}


def test_a_job_that_begins_goes_on_sharded(pair: Ranks, tmp_path: Path) -> None:
    seen = pair.run(both, False, tmp_path / "best.json")
    assert any(text.startswith("ddp: out_of_memory") for text in seen[0]["events"])
    assert seen[0]["restored"] == [True]
    for rank in seen:
        assert rank["kind"] == "FSDP2"
        assert rank["same"]
        assert rank["difference"] < 1e-5
    assert load_bundle(tmp_path / "best.json").plan.sharding is not None


def test_a_job_that_has_begun_goes_on_under_ddp_and_says_what_to_do(
    pair: Ranks, tmp_path: Path
) -> None:
    save = tmp_path / "best.json"
    seen = pair.run(both, True, save)
    assert seen[0]["restored"] == [True, True]
    for rank in seen:
        assert rank["kind"] == "DistributedDataParallel"
        assert rank["restored"][-1]
        assert rank["same"]
        assert rank["copies"] == 0
        assert rank["groups"] == 0
        assert rank["difference"] < 1e-5
        assert "the answer is torch's FSDP2" in rank["warned"]
        assert "torch's DDP ran out of memory" in rank["warned"]
        assert "autosync.TrainingState" in rank["warned"]
        assert f'autosync.distribute(model, optimizer, "{save}")' in rank["warned"]
    assert load_bundle(save).plan.sharding is not None


def refused(rank: int, world: int) -> list[str]:
    return [
        refusal_of(autosync.tune, step_of(rank), *made(rank, has_state=True), space=space)
        for space in ("fsdp2", "fsdp")
    ]


def test_what_would_be_lost_and_what_no_space_is_called_are_refused(pair: Ranks) -> None:
    for unsaved, unknown in pair.run(refused):
        assert "has stepped" in unsaved
        assert "no space is named 'fsdp'" in unknown


def test_adagrad_has_not_stepped_before_its_first_step() -> None:
    """It makes its state when it is made; what only reads a state leaves an empty one."""
    model = nn.Linear(2, 1)
    optimizers = [
        torch.optim.Adagrad(model.parameters(), lr=0.1),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    ]
    assert not optimizers[1].state[model.weight]
    check_untrained(optimizers)
    assert not any(one.has_begun for one in take_snapshot(model, optimizers).optimizers)
    model(torch.ones(1, 2)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        with pytest.raises(InvalidInput, match="has stepped"):
            check_untrained([optimizer])
    assert all(one.has_begun for one in take_snapshot(model, optimizers).optimizers)


def test_no_trial_takes_more_than_a_device_has() -> None:
    domain = domain_of(layered_graph(((1000, 250),) * 12), grid_cluster(2))
    strategy = fsdp2(domain)
    needed = most_peak_bytes(domain, [strategy])[0] + domain.graph.size_bytes

    def refusal(memory_bytes: float) -> str:
        tight = on_devices(domain, Device("cpu", memory_gb=memory_bytes / 1e9))
        return no_room_beside_values(tight, make_bundle(strategy, tight))

    assert refusal(needed + 1e3) == ""
    assert "for the values of the job's own model" in refusal(needed - 1e3)


def test_a_tuning_that_fails_says_what_was_not_tried_for_want_of_room() -> None:
    domain = domain_of(layered_graph(((1000, 250),) * 12), grid_cluster(2))
    tight = on_devices(domain, Device("cpu", memory_gb=1e-3))
    refusal = partial(no_room_beside_values, tight)
    pool = JobPool(cast(Any, None), "a job", refusal=refusal)
    assert pool.with_refusal("DDP ran out of memory.") == "DDP ran out of memory."
    with patch.object(JobPool, "world_size", 2):
        result = pool.run(TrialRequest("one", make_bundle(fsdp2(tight), tight)))
    assert result.error is not None
    told = pool.with_refusal("DDP ran out of memory.")
    assert told == f"DDP ran out of memory. Not tried: {result.error.message}"
    assert "autosync tune --space fsdp2" in told
    assert pool.with_refusal(told) == told


def test_the_call_that_a_job_is_told_takes_a_lossy_answer() -> None:
    """`distribute` refuses one that nobody has allowed."""
    domain = domain_of(layered_graph(((1000, 250),) * 12), grid_cluster(2))
    strategy = fsdp2(domain)
    assert strategy.engine is not None
    lossy = sharded_by(domain, strategy.engine, Encoding("bf16"))
    told = why_next_run(make_bundle(lossy, domain), "best.json")
    assert '(model, optimizer, "best.json", allow_lossy=True)' in told
    assert "allow_lossy" not in why_next_run(make_bundle(strategy, domain), "best.json")


def of_three_batches(rank: int, world: int, space: SpaceName | None, out: Path) -> bool:
    """Whether the model that comes back has what a step of several batches calls."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model, optimizer = made(rank, has_state=False)

    def step(network: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        for left in (2, 1, 0):
            with network.no_sync() if left else nullcontext():
                (loss_on(network, batch_of(rank, left)) / 3).backward()
        optimizer.step()

    network, _ = autosync.tune(
        step,
        model,
        optimizer,
        minutes=5,
        space=space,
        settings=SETTINGS,
        save=out / "best.json",
        trials=out / "trials.json",
    )
    return hasattr(network, "no_sync")


@pytest.mark.parametrize("space", [None, "fsdp2"])
def test_a_step_may_have_several_batches(
    pair: Ranks, tmp_path: Path, space: SpaceName | None
) -> None:
    assert pair.run(of_three_batches, space, tmp_path) == [True, True]
    measured = from_json(EarlierTrials, (tmp_path / "trials.json").read_text())
    assert (measured.accumulate, len(measured.trials)) == (3, SETTINGS.budget)
    assert load_bundle(tmp_path / "best.json").evidence.accumulate == 3
