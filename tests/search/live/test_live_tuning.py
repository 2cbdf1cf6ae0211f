"""`autosync.tune` on the three ranks of a running job."""

import gc
import importlib
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import autosync
from autosync.bundle import load_bundle
from autosync.errors import NotSupported
from autosync.search.loop.earlier_document import EarlierTrials
from autosync.search.loop.earlier_trials import read_earlier
from autosync.search.loop.outcome import TuningEvent
from autosync.search.loop.settings import Settings
from tests.autosync.runtime.cases import gap, worst_difference
from tests.autosync.runtime.ranks import Ranks, ranks
from tests.search.live.live_training import (
    EventChecks,
    batch_of,
    fingerprint,
    loss_on,
    made,
    refusal_of,
    step_on,
    trained,
    two_hosts,
)

pytestmark = pytest.mark.timeout(600)
CLIPPED = 1e-3
"""A norm that every gradient here exceeds."""

MINUTES = 5
"""For a tuning that is through with its few trials in seconds: it must not run out of time."""

SHORT = Settings(warmup=1, iterations=2)
"""Trials of few iterations."""

TRIALS = 3

Seen = list[dict[str, Any]]


def warmed(rank: int, world: int) -> None:
    """Trials collect garbage around every pass: it need not look at the modules of the search."""
    two_hosts(rank)
    importlib.import_module("autosync.search.live.live_tuning")
    gc.freeze()


@pytest.fixture(scope="module")
def trio() -> Iterator[Ranks]:
    with ranks(3) as made:
        made.run(warmed)
        yield made


def scaled_step_on(
    tokens: Tensor, scaler: torch.amp.GradScaler
) -> Callable[[nn.Module, torch.optim.Optimizer], None]:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        scaler.scale(loss_on(model, tokens)).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def tuning(rank: int, world: int, out: Path) -> dict[str, Any]:
    """The whole of `autosync.tune`, then training against torch's DDP."""
    model, optimizer = made(rank)
    twin, twin_optimizer = made(rank)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    scaled_before = scaler.state_dict()
    before = fingerprint(model, optimizer)
    events: list[TuningEvent] = []
    model_after, optimizer_after = autosync.tune(
        scaled_step_on(batch_of(rank, 0), scaler),
        model,
        optimizer,
        minutes=MINUTES,
        others=[scaler],
        settings=replace(SHORT, budget=TRIALS, proposals=64, repeats=2),
        save=out / "best.json",
        trials=out / "trials.json",
        on_event=events.append,
    )
    inner = model_after.module if isinstance(model_after, DistributedDataParallel) else model_after
    after = fingerprint(inner, optimizer_after)
    mine = trained(model_after, optimizer_after, rank)
    theirs = trained(DistributedDataParallel(twin), twin_optimizer, rank)
    return {
        "same_objects": inner is model and optimizer_after is optimizer,
        "restored": before == after and scaler.state_dict() == scaled_before,
        "events": [event.kind for event in events],
        "messages": [event.message for event in events],
        "kind": type(model_after).__name__,
        "difference": max(gap(a, b) for a, b in zip(mine, theirs, strict=True)),
        "again": tuned_again(rank, model_after, out),
    }


def tuned_again(rank: int, model: nn.Module, out: Path) -> list[str]:
    """What a second tuning says of its trials, which begins from the first one's."""
    plain, optimizer = autosync.detach(model)
    events: list[TuningEvent] = []
    autosync.tune(
        step_on(batch_of(rank, 0)),
        plain,
        optimizer,
        minutes=MINUTES,
        settings=replace(SHORT, budget=TRIALS - 1, proposals=64, repeats=1, probe=False),
        since=out / "trials.json",
        on_event=events.append,
    )
    return [event.message for event in events if event.kind == "search"]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def tuned(trio: Ranks, out: Path) -> Seen:
    return trio.run(tuning, out)


def test_tuning_restores_every_bit_and_trains_on_as_ddp_would(tuned: Seen, out: Path) -> None:
    for rank in tuned:
        assert rank["same_objects"]
        assert rank["restored"]
        assert rank["difference"] < 1e-5  # AdamW divides by small numbers: rounding grows
    assert len({rank["kind"] for rank in tuned}) == 1
    events = tuned[0]["events"]
    assert {"opening", "search", "done"} <= set(events)
    assert events.count("done") == 1
    assert events[-1] == "done"
    assert not tuned[1]["events"]
    messages = tuned[0]["messages"]
    assert "measuring what messages cost" in messages
    assert not any("assumed" in text for text in messages)
    slowed = [text for text in messages if "compute" in text]
    assert len(slowed) == 1  # told, or why it is not
    assert "while messages are under way" in slowed[0] or "is not known" in slowed[0]
    shipped = load_bundle(out / "best.json")
    assert shipped.hosts == ("first", "first", "second")
    assert shipped.evidence.measured_on == "job (3 ranks on 2 hosts)"
    engine = tuned[0]["kind"] != "DistributedDataParallel"
    assert engine == (shipped.plan.engine == "autosync")


def test_a_second_tuning_measures_first_what_the_first_found(tuned: Seen, out: Path) -> None:
    measured = read_earlier(out / "trials.json")
    assert isinstance(measured, EarlierTrials)
    assert len(measured.trials) == TRIALS
    again = tuned[0]["again"]
    assert len(again) == TRIALS - 1
    assert again[0].startswith("ddp: ")
    assert not tuned[1]["again"]


def unwritten(rank: int, world: int, folder: Path) -> str:
    """What is warned of where the folder of the files goes while the tuning runs."""
    model, optimizer = made(rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        network, _ = autosync.tune(
            step_on(batch_of(rank, 0)),
            model,
            optimizer,
            minutes=MINUTES,
            settings=replace(SHORT, budget=TRIALS - 1, proposals=64, repeats=1, probe=False),
            save=folder / "best.json",
            trials=folder / "trials.json",
            on_event=lambda event: shutil.rmtree(folder, ignore_errors=True),
        )
    trained(network, optimizer, rank)
    return "; ".join(str(warning.message) for warning in caught)


def test_an_answer_that_cannot_be_written_is_trained_with(trio: Ranks, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    first, *others = trio.run(unwritten, folder)
    assert "best.json' could not be written" in first
    assert "trials.json' could not be written" in first
    for said in (first, *others):
        assert "found no answer" not in said
    assert all("could not be written" not in said for said in others)


def falling_back(rank: int, world: int) -> dict[str, Any]:
    """A step that always fails on one rank once it is synchronized. What `tune` was told counts
    under the DDP that is left, too: a step's gradients have the norm that was clipped to."""
    model, optimizer = made(rank)
    before = fingerprint(model, optimizer)
    plain = step_on(batch_of(rank, 0))
    calls = [0]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        calls[0] += 1
        plain(model, optimizer)
        if rank == 1 and calls[0] > 5:
            raise RuntimeError("always")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        after, _ = autosync.tune(
            step,
            model,
            optimizer,
            minutes=MINUTES,
            max_grad_norm=CLIPPED,
            ddp_options={"gradient_as_bucket_view": True},
            settings=replace(SHORT, budget=2, proposals=50, probe=False),
        )
    words = " ".join(str(one.message) for one in caught)
    restored = before == fingerprint(model, optimizer)
    plain(after, optimizer)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return {
        "kind": type(after).__name__,
        "restored": restored,
        "clipped": abs(float(nn.utils.get_total_norm(gradients)) / CLIPPED - 1) < 1e-3,
        "options": getattr(after, "gradient_as_bucket_view", None),
        "warned": "torch's DDP is used" in words and "always" in words,
    }


def test_a_job_whose_every_trial_fails_goes_on_with_ddp(trio: Ranks) -> None:
    for rank in trio.run(falling_back):
        assert rank == {
            "kind": "DistributedDataParallel",
            "restored": True,
            "clipped": True,
            "options": True,
            "warned": True,
        }


def held() -> dict[str, int]:
    """What process groups leave behind where nobody ends them."""
    gc.collect()
    files = Path("/proc/self/fd")
    kinds = [os.readlink(file) for file in files.iterdir() if os.path.lexists(file)]
    return {
        "groups": len(dist.distributed_c10d._world.pg_map),
        "sockets": sum(kind.startswith("socket:") for kind in kinds),
        "threads": len(os.listdir("/proc/self/task")),
    }


def refusals(rank: int, world: int) -> dict[str, Any]:
    """Steps that are none: the same error on every rank, though one rank alone is wrong. held:
    before the first tuning, after it and after the second."""
    plain = step_on(batch_of(rank, 0))

    def nothing(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Does nothing on rank 1."""
        if rank != 1:
            plain(model, optimizer)

    def twice(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        plain(model, optimizer)
        plain(model, optimizer)

    found: dict[str, Any] = {"held": [held()]}
    for name, step in (("nothing", nothing), ("twice", twice)):
        model, optimizer = made(rank)
        before = fingerprint(model, optimizer)
        found[name] = refusal_of(autosync.tune, step, model, optimizer, minutes=MINUTES)
        assert fingerprint(model, optimizer) == before
        found["held"].append(held())
    return found


@pytest.fixture(scope="module")
def refused(trio: Ranks) -> Seen:
    return trio.run(refusals)


def test_one_rank_alone_cannot_go_on_without_the_others(refused: Seen) -> None:
    for number, rank in enumerate(refused):
        assert "does not call the model" in rank["nothing"]
        assert ("rank 1 cannot tune" in rank["nothing"]) == (number != 1)
        assert "another batch behind optimizer.step()" in rank["twice"]


def test_a_tuning_leaves_no_process_group(refused: Seen) -> None:
    """The first one may start threads of torch's own; the second adds nothing."""
    for rank in refused:
        before, first, second = rank["held"]
        assert first["groups"] == second["groups"] == before["groups"]
        assert second["sockets"] <= first["sockets"]
        assert second["threads"] <= first["threads"]


def settings_of_the_search(rank: int, world: int) -> str:
    """What a tuning hands to its search where it is given none."""

    def told(job: object, batch_size: object, settings: Settings, *rest: object) -> None:
        raise ValueError(repr(settings))

    live = importlib.import_module("autosync.search.live.live_tuning")
    model, optimizer = made(rank)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(live, "_verdict", told)
        return refusal_of(autosync.tune, print, model, optimizer)


def test_without_settings_the_usual_ones_count(trio: Ranks) -> None:
    """So that `Settings(iterations=...)` changes the iterations and nothing else."""
    assert set(trio.run(settings_of_the_search)) == {repr(Settings())}


class Sidestepping(nn.Module):
    """Leaves a parameter out of some forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, values: Tensor, scaled: bool) -> Tensor:
        found: Tensor = self.inner(values)
        return found * self.scale if scaled else found


def sidestepping() -> tuple[Sidestepping, list[torch.optim.Optimizer]]:
    torch.manual_seed(3)
    model = Sidestepping()
    inner = torch.optim.AdamW(model.inner.parameters(), lr=1e-3, eps=1e-3)  # no division of noise
    return model, [inner, torch.optim.SGD([model.scale], lr=0.1)]


def alternating_step(rank: int) -> Callable[[nn.Module, list[torch.optim.Optimizer]], None]:
    values = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))
    calls = [0]

    def step(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        calls[0] += 1
        model(values, calls[0] % 2 == 1).square().mean().backward()
        for optimizer in reversed(optimizers):
            optimizer.step()

    return step


def several(rank: int, world: int) -> dict[str, Any]:
    """Two optimizers, and a parameter that some steps leave without a gradient, beside DDP."""
    model, optimizers = sidestepping()
    twin, twin_optimizers = sidestepping()
    step = alternating_step(rank)
    refused = refusal_of(autosync.tune, step, model, optimizers, minutes=MINUTES)
    events = EventChecks(model, optimizers)
    after, same = autosync.tune(
        step,
        model,
        optimizers,
        minutes=MINUTES,
        ddp_options={"find_unused_parameters": True},
        settings=replace(SHORT, budget=3, proposals=64, repeats=1, probe=False),
        on_event=events,
    )
    by_ddp = DistributedDataParallel(twin, find_unused_parameters=True)
    for network, stepping in ((after, same), (by_ddp, twin_optimizers)):
        step = alternating_step(rank)
        for _ in range(4):
            step(network, stepping)
    model.state_dict()  # waits for what is on its way
    return {
        "refused": refused,
        "failures": events.failures,
        "same": same is optimizers,
        "restored": events.restored,
        "difference": worst_difference(model, twin),
    }


def test_several_optimizers_and_parameters_that_steps_leave_out(trio: Ranks) -> None:
    seen = trio.run(several)
    assert seen[0]["restored"] == [True]
    for found in seen:
        assert "no gradient" in found["refused"]
        assert "find_unused_parameters" in found["refused"]
        assert found["failures"] == []
        assert found["same"]
        assert found["difference"] < 1e-5


def streaming(rank: int, world: int) -> dict[str, Any]:
    """A stream of batches that decide what runs. Rank 1 has fewer of them than the others."""
    model, optimizers = sidestepping()
    generator = torch.Generator().manual_seed(rank)
    samples = torch.randn(32, 8, generator=generator)
    size = 4 if rank != 1 else 8
    rows = cast(Dataset[Tensor], list(samples))
    own = torch.Generator().manual_seed(rank)
    order = own if rank else None
    stream: DataLoader[Tensor] = DataLoader(rows, size, shuffle=True, generator=order)
    untouched = own.get_state()
    seen: list[int] = []

    def step(model: nn.Module, optimizers: list[torch.optim.Optimizer], values: Tensor) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        seen.append(hash(tuple(values.flatten().tolist())))
        model(values, float(values.sum()) > 0).square().mean().backward()
        for optimizer in reversed(optimizers):
            optimizer.step()

    batches: Any = [] if rank == 2 else stream
    refused = refusal_of(autosync.tune, step, model, optimizers, batches=batches)
    expected = [hash(tuple(values.flatten().tolist())) for values in peek(stream, own)]
    events = EventChecks(model, optimizers)
    autosync.tune(
        step,
        model,
        optimizers,
        batches=stream,
        minutes=MINUTES,
        ddp_options={"find_unused_parameters": True},
        settings=replace(SHORT, iterations=3, budget=2, proposals=64, repeats=1, probe=False),
        on_event=events,
    )
    first, recorded = seen[0], seen[1:5]
    passes = [seen[i : i + 4] for i in range(5, len(seen), 4)]
    return {
        "refused": refused,
        "restored": events.restored,
        "failures": events.failures,
        "again": first == recorded[0],
        "recorded": recorded == expected[:4],
        "passes": len(passes),
        "alike": all(one == recorded for one in passes),
        "untouched": torch.equal(own.get_state(), untouched),
    }


def peek(stream: DataLoader[Tensor], own: torch.Generator) -> list[Tensor]:
    """What it gives, and random states as they were before."""
    state, of_own = torch.get_rng_state(), own.get_state()
    found = list(stream)
    torch.set_rng_state(state)
    own.set_state(of_own)
    return found


def test_every_trial_runs_the_same_batches_of_a_stream(trio: Ranks) -> None:
    """As many as the rank with the fewest has: 4. Recorded are all, after the first once more."""
    seen = trio.run(streaming)
    assert seen[0]["restored"] == [True]
    assert seen[0]["failures"] == []
    for number, found in enumerate(seen):
        assert "batches is empty" in found["refused"]
        assert ("rank 2 cannot tune" in found["refused"]) == (number != 2)
        assert found["again"]
        assert found["recorded"]
        assert found["alike"]
        assert found["untouched"]
        assert found["passes"] >= 3


def alone(rank: int, world: int, folder: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()

    save = Path(folder) / "best.json"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        network: Any = autosync.tune(step, model, optimizer, max_grad_norm=CLIPPED, save=save)[0]
    with network.no_sync():
        before = [p.detach().clone() for p in model.parameters()]
    step(network, optimizer)
    moves = [(p.detach() - q).norm() for p, q in zip(model.parameters(), before, strict=True)]
    return {
        "moved": float(torch.stack(moves).norm()),
        "taken off": autosync.detach(network)[0] is model,
        "told": any("does not write" in str(each.message) for each in told),
        "saved": save.exists(),
    }


def test_a_job_of_one_rank_is_clipped_as_one_of_several_is_and_says_what_it_does_not_write(
    tmp_path: Path,
) -> None:
    with ranks(1) as single:
        (found,) = single.run(alone, str(tmp_path))
    assert found["moved"] == pytest.approx(CLIPPED, rel=0.01)
    assert found["taken off"]
    assert (found["told"], found["saved"]) == (True, False)


def test_without_the_search_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "autosync.search.live.live_tuning", None)
    with pytest.raises(NotSupported, match="not installed"):
        autosync.tune  # noqa: B018
