"""`autosync.diagnose` on two ranks of a running job, as it stands."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import autosync
from autosync.cluster import Device
from autosync.diagnosis.job_facts import facts_of
from autosync.diagnosis.report import Attainable
from autosync.errors import InvalidInput
from autosync.search.live import diagnosis
from autosync.search.live.diagnosis import attainable_in
from autosync.simulator.limit import iteration_limit
from tests.autosync.runtime.ranks import Ranks, ranks
from tests.domains import domain_of, grid_cluster
from tests.search.live.live_training import (
    Tiny,
    batch_of,
    fingerprint,
    loss_on,
    refusal_of,
    step_on,
)
from tests.simulator.worked_examples import on_devices

pytestmark = pytest.mark.timeout(600)

ITERATIONS = 3
SLEEP_SECONDS = 0.2
"""At least; the more, the slower a busy machine makes iterations."""


@pytest.fixture(scope="module")
def pair() -> Iterator[Ranks]:
    with ranks(2) as made:
        yield made


def _made(how: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    tiny = Tiny()
    model: nn.Module = tiny
    if how == "unused":
        tiny.spare = nn.Linear(2, 2)
    if how in ("ddp", "unused"):
        model = DistributedDataParallel(model, find_unused_parameters=True)
    if how == "fsdp2":
        for layer in tiny.layers:
            fully_shard(layer)
        fully_shard(model)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def _diagnosed(rank: int, world: int, how: str, predict: bool) -> dict[str, Any]:
    model, optimizer = _made(how)
    step = step_on(batch_of(rank, 0))
    step(model, optimizer)
    before = fingerprint(model, optimizer) if how != "fsdp2" else _sharded_values(model)
    with patch.object(diagnosis, "PROPOSALS", 64):
        found = autosync.diagnose(step, model, optimizer, iterations=ITERATIONS, predict=predict)
    after = fingerprint(model, optimizer) if how != "fsdp2" else _sharded_values(model)
    step(model, optimizer)  # training goes on
    return {"same": before == after, **json.loads(found.to_json())}


def _sharded_values(model: nn.Module) -> list[Any]:
    return [cast(DTensor, p).to_local().tolist() for p in model.parameters()]


@pytest.mark.parametrize("how", ["ddp", "fsdp2", "none"])
def test_nothing_is_changed_and_all_ranks_read_the_same(pair: Ranks, how: str) -> None:
    first, second = pair.run(_diagnosed, how, False)
    assert first.pop("same")
    assert second.pop("same")
    assert first == second
    assert first["wrapping"] == how
    operations = {each["operation"] for each in first["breakdown"]["collectives"]}
    expected = {"ddp": {"all_reduce"}, "fsdp2": {"all_gather", "reduce_scatter"}, "none": set()}
    assert operations - {"broadcast"} == expected[how]  # DDP sends buffers, too


def test_a_prediction_beside_the_measurement(pair: Ranks) -> None:
    first, second = pair.run(_diagnosed, "ddp", True)
    assert first.pop("same")
    assert second.pop("same")
    assert first == second
    assert first["notes"] == [] or "profiler" in first["notes"][0]
    attainable = first["attainable"]
    assert 0 < attainable["best_seconds"] <= attainable["ddp_seconds"]
    assert first["links"][0]["gbps"] > 0
    assert "find_unused_parameters" in [each["name"] for each in first["mistakes"]]


def test_a_job_that_leaves_parameters_out_is_predicted(pair: Ranks) -> None:
    first, _ = pair.run(_diagnosed, "unused", True)
    assert not any("Nothing is predicted" in each for each in first["notes"])
    assert first["attainable"]["ddp_seconds"] > 0


def _of_two_batches(rank: int, world: int) -> tuple[str, bool]:
    """How the bare model is wrapped, and whether it has kept the method that it lacks."""
    model, optimizer = _made("none")

    def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        with model.no_sync():
            loss_on(model, batch_of(rank, 0)).backward()
        loss_on(model, batch_of(rank, 1)).backward()
        optimizer.step()

    found = autosync.diagnose(step, model, optimizer, iterations=ITERATIONS, predict=False)
    return found.wrapping, hasattr(model, "no_sync")


def test_a_step_of_two_batches_runs_on_a_bare_model(pair: Ranks) -> None:
    assert pair.run(_of_two_batches) == [("none", False), ("none", False)]


def _unmeasured(rank: int, world: int) -> list[str]:
    """Its iterator has no batch beyond those of the measured iterations and of their warm-ups."""
    model, optimizer = _made("ddp")
    error = InvalidInput("no line fits these samples.", thing="samples")
    measured = diagnosis.WARM_UP + 2 * (1 + ITERATIONS)
    batches = iter([batch_of(rank, number) for number in range(measured)])
    with patch.object(diagnosis, "measure_message_costs", side_effect=error):
        found = autosync.diagnose(
            _batch_step, model, optimizer, batches=batches, iterations=ITERATIONS
        )
    return list(found.notes)


def _batch_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    step_on(batch)(model, optimizer)


def test_without_a_prediction_every_rank_has_the_rest(pair: Ranks) -> None:
    first, second = pair.run(_unmeasured)
    assert first == second
    assert "Nothing is predicted: no line fits these samples." in first


def _fed(rank: int, world: int) -> tuple[float, float]:
    """The input that predictions are given, and what the measurement says of it. The step leaves
    two parameters out."""
    tiny = Tiny()
    tiny.add_module("unused", nn.Linear(2, 2))
    model = DistributedDataParallel(tiny, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = [batch_of(rank, number) for number in range(2)]
    made = (
        patch.object(diagnosis, "measure_message_costs", side_effect=lambda _, domain, *__: domain),
        patch.object(
            diagnosis,
            "attainable_in",
            side_effect=lambda _, seconds: Attainable(seconds, "input", 1.0, "ddp", 1.0, "none"),
        ),
    )
    with made[0], made[1]:
        found = autosync.diagnose(
            _batch_step, model, optimizer, batches=batches, iterations=ITERATIONS
        )
    assert found.attainable is not None, found.notes
    return found.attainable.limit_seconds, found.input_seconds


def test_predictions_are_given_what_ranks_spend_on_input(pair: Ranks) -> None:
    for given, measured in pair.run(_fed):
        assert given == pytest.approx(measured)
        assert measured > 0


def _within(rank: int, world: int) -> tuple[str, bool, str]:
    model = nn.Sequential(DistributedDataParallel(Tiny()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = step_on(batch_of(rank, 0))
    found = autosync.diagnose(step, model, optimizer, iterations=ITERATIONS)
    return found.wrapping, found.attainable is None, found.notes[-1]


def test_nothing_is_predicted_of_ddp_around_modules(pair: Ranks) -> None:
    """As of the networks of a GAN: their own iterations would not be without messages."""
    for wrapping, unknown, note in pair.run(_within):
        assert (wrapping, unknown) == ("ddp", True)
        assert "with DDP around its modules" in note


def test_no_strategy_shortens_the_input() -> None:
    domain = replace(domain_of(cluster=grid_cluster(2, 2, gbps=0.01)), accumulate=2)
    computing = 2 * iteration_limit(domain).compute_seconds
    with patch.object(diagnosis, "PROPOSALS", 64):
        plain, fed = attainable_in(domain), attainable_in(domain, input_seconds=100.0)
    assert fed.best_seconds == pytest.approx(plain.best_seconds + 100)
    assert fed.ddp_seconds == pytest.approx(plain.ddp_seconds + 100)
    assert fed.limit_seconds == pytest.approx(computing + 100)
    assert fed.tightest == "compute and input"


class _FetchesAhead(DataLoader[int]):
    """An epoch of six batches. Its worker is said to fetch three ahead; none is started."""

    def __iter__(self) -> Any:
        return iter(range(6))


def test_batches_that_workers_have_fetched_ahead_are_dropped_within_an_epoch() -> None:
    """Of nothing else: an iterator may have no more batches than iterations."""
    loader = _FetchesAhead(cast(Any, range(6)), None, num_workers=1, prefetch_factor=3)
    cases: tuple[tuple[Any, list[int]], ...] = ((loader, [0, 4, 0]), (iter(range(3)), [0, 1, 2]))
    for batches, expected in cases:
        fetched = diagnosis._Batches(batches)
        found = []
        for _ in range(3):
            found.append(fetched.next())
            fetched.drop_ahead()
        assert found == expected


def test_what_does_not_fit_the_devices_is_not_attainable() -> None:
    slow = domain_of(cluster=grid_cluster(2, 2, gbps=0.01))
    with patch.object(diagnosis, "PROPOSALS", 64):
        found = attainable_in(on_devices(slow, Device("cpu", 2, memory_gb=1e-6)))
    assert (found.best, found.best_seconds) == ("ddp", found.ddp_seconds)


def _fails_on_the_bare_model(rank: int, world: int) -> list[str]:
    model, optimizer = _made("ddp")
    plain = step_on(batch_of(rank, 0))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if rank == 1 and not isinstance(model, DistributedDataParallel):
            raise AttributeError("no attribute 'module'")
        plain(model, optimizer)

    return list(autosync.diagnose(step, model, optimizer, iterations=ITERATIONS).notes)


def test_a_step_that_fails_on_the_bare_model_leaves_what_was_measured(pair: Ranks) -> None:
    first, second = pair.run(_fails_on_the_bare_model)
    assert first == second
    why = "Nothing is predicted: rank 1 cannot tune: AttributeError: no attribute 'module'"
    assert why in first


def _one_sleeps(rank: int, world: int, where: str) -> dict[str, Any]:
    model, optimizer = _made("ddp")
    begun = time.monotonic()
    for _ in range(ITERATIONS):
        step_on(batch_of(rank, 0))(model, optimizer)
    sleep_seconds = max(SLEEP_SECONDS, time.monotonic() - begun)
    loader = DataLoader(_Slow(sleep_seconds if (rank, where) == (1, "input") else 0.0), None)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
        if (rank, where) == (1, "step"):
            time.sleep(sleep_seconds)
        optimizer.zero_grad()
        loss_on(model, batch).backward()
        optimizer.step()

    found = autosync.diagnose(
        step, model, optimizer, batches=loader, iterations=ITERATIONS, predict=False
    )
    data: dict[str, Any] = json.loads(found.to_json())
    return {**data, "sleep_seconds": sleep_seconds}


class _Slow(Dataset[torch.Tensor]):
    def __init__(self, sleep_seconds: float) -> None:
        self.sleep_seconds = sleep_seconds

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.sleep_seconds)
        return batch_of(0, index)


@pytest.mark.parametrize(("where", "why"), [("step", "host or link"), ("input", "input")])
def test_the_slow_rank_is_named_with_its_reason(pair: Ranks, where: str, why: str) -> None:
    first, second = pair.run(_one_sleeps, where)
    slowest = first["breakdown"]["slowest"]
    assert (slowest["rank"], slowest["why"]) == (1, why)
    waiting = first["breakdown"]["ranks"][0]["waiting"]
    assert waiting > second["sleep_seconds"] / 2  # of rank 0, for rank 1


def _fails(rank: int, world: int, how: str, folder: str) -> str:
    model, optimizer = _made("ddp")

    def step(*_: Any) -> None:
        raise ValueError("no such shape")

    options: dict[str, Any] = {"save": f"{folder}/page.pdf"} if how == "save" else {}
    if how == "batches":
        options = {"batches": []}
    if how == "one":
        options = {"batches": [batch_of(0, 0)] if rank == 0 else None}
    if how == "others":
        options = {"others": [iter(())]}
    if how == "iterations":
        options = {"iterations": 0}
    given = step if how == "step" else step_on(batch_of(rank, 0))
    return refusal_of(autosync.diagnose, given, model, optimizer, **options)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("step", "no such shape"),
        ("save", "page.pdf' names no format"),
        ("batches", "batches is empty"),
        ("one", "rank 1 was given no batches"),
        ("others", "others[0] (tuple_iterator) has no state_dict"),
        ("iterations", "iterations is 0"),
    ],
)
def test_what_cannot_be_is_refused_on_every_rank(
    pair: Ranks, how: str, says: str, tmp_path: Path
) -> None:
    for answer in pair.run(_fails, how, str(tmp_path)):
        assert says in answer


def _saved(rank: int, world: int, file: str) -> bool:
    model, optimizer = _made("ddp")
    step = step_on(batch_of(rank, 0))
    autosync.diagnose(step, model, optimizer, iterations=2, predict=False, save=file)
    dist.barrier()
    return Path(file).read_text().startswith("<!doctype html>")


def test_rank_0_writes_the_page(pair: Ranks, tmp_path: Path) -> None:
    assert pair.run(_saved, str(tmp_path / "page.html")) == [True, True]


def _compiled(rank: int, world: int) -> list[bool]:
    whole: Any = torch.compile(Tiny(), backend="eager")
    within = DistributedDataParallel(whole)
    around: Any = torch.compile(DistributedDataParallel(Tiny()), backend="eager")
    return [facts_of(each).compiled for each in (whole, within, around)]


def test_compiled_around_ddp_is_not_one_region(pair: Ranks) -> None:
    assert pair.run(_compiled) == [[True, True, False]] * 2
