"""Placed modules in a running job's trials, and in a whole tuning of it, on real ranks."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.bundle import make_bundle
from autosync.cluster import Cluster
from autosync.domain import Domain
from autosync.extensions.placement.document import PlacedModules, evenly, in_proportion
from autosync.extensions.placement.proposals import with_placement
from autosync.search.designs.known_designs import all_reduce_5mb
from autosync.search.live import live_tuning
from autosync.search.loop.outcome import TuningEvent
from autosync.search.loop.settings import Settings
from autosync.search.space import Space
from autosync.trials.contract import TrialRequest
from autosync.trials.live.job import LiveJob, open_control
from autosync.trials.live.job_cluster import measure_cluster
from autosync.trials.live.job_pool import JobPool, Verdict, serve
from autosync.trials.live.snapshot import take_snapshot
from autosync.trials.live.step_graph import record_job
from tests.autosync.runtime.cases import gap
from tests.autosync.runtime.ranks import Ranks
from tests.search.live.live_training import fingerprint

pytestmark = pytest.mark.timeout(600)

ROWS, WIDTH, BATCH = 16_384, 128, 4
"""Of a table of 8 MB, all of which travels, and samples of half a kilobyte."""

SLOW_GBPS = 0.05
"""Of links, as the search is told: on any machine, beside any load, it then proposes placements."""

HIDDEN = 16
TRIAL_TIMEOUT = timedelta(seconds=60)


class Compared(nn.Module):
    """Weighs the samples of a batch against each other, which its graph does not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x).softmax(0)
        return out


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(HIDDEN, HIDDEN)
        self.block = nn.Sequential(nn.Linear(HIDDEN, 2 * HIDDEN), nn.GELU(), nn.Dropout(0.2))
        self.compared = Compared()
        self.last = nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        out: Tensor = self.last(self.block(hidden + self.compared(hidden)))
        return out


def tabled() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Embedding(ROWS, WIDTH), nn.Linear(WIDTH, 8))


def step_on(x: Tensor) -> Callable[[nn.Module, torch.optim.Optimizer], None]:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


TRIALS: dict[str, PlacedModules] = {
    "plain": (),
    "one device": (evenly("block", [1]),),
    "uneven": (in_proportion("block", [0, 1], [1.0, 3.0]), evenly("last", [0])),
    "mixing": (evenly("compared", [0]), evenly("last", [1])),
    "behind mixing": (evenly("last", [1]),),
    "raises": (evenly("block", [0]), evenly("last", [1])),
    "behind raising": (evenly("block", [0]), evenly("last", [1])),
    "plain again": (),
}


def trials(rank: int, world: int) -> dict[str, dict[str, Any]]:
    """Of each trial: what the pool says on rank 0, and whether every bit is what it was."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    torch.manual_seed(5)
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first, own = (
        step_on(torch.randn(BATCH, HIDDEN, generator=torch.Generator().manual_seed(seed)))
        for seed in (world, rank)
    )
    first(model, optimizer)  # so that there is a state to lose, the same on every rank
    failing = [False]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        own(model, optimizer)
        if failing[0] and rank == 1:
            raise RuntimeError("raised on purpose")

    control = open_control(timedelta(minutes=5))
    control.share_values(model)
    before = take_snapshot(model, [optimizer])
    bits = fingerprint(model, optimizer)
    job = LiveJob(step, model, optimizer, before, control, TRIAL_TIMEOUT)
    recorded = record_job(job, None, "cpu")
    job.renew_groups()
    cluster = measure_cluster(job, recorded.step_seconds)
    domain = control.from_first(
        Domain(recorded.graph, cluster, recorded.profile, recorded.optimizer)
    )
    found: dict[str, dict[str, Any]] = {}
    for name, placement in TRIALS.items():
        failing[0] = name == "raises"
        bundle = make_bundle(with_placement(all_reduce_5mb(domain), domain, placement), domain)
        found[name] = {}
        if rank:
            serve(job)
        else:
            pool = JobPool(job, "job (test)")
            request = TrialRequest(name, bundle, warmup=1, iterations=3, record=True)
            found[name]["result"] = pool.run(request)
            pool.dismiss(Verdict(bundle))
        found[name]["restored"] = fingerprint(model, optimizer) == bits
        trained = [parameter.requires_grad for parameter in model.parameters()]
        found[name]["trained"] = all(trained)
    job.end_groups()
    control.leave()
    return found


@pytest.fixture(scope="module")
def tried(pair: Ranks) -> list[dict[str, dict[str, Any]]]:
    return pair.run(trials)


def test_a_trial_takes_a_placement_off_again_whatever_happens_in_it(
    tried: list[dict[str, dict[str, Any]]],
) -> None:
    first, second = tried
    for name in TRIALS:
        assert first[name]["restored"], name
        assert second[name]["restored"], name
        assert first[name]["trained"], name
        assert second[name]["trained"], name
    failed = {name: each["result"].error for name, each in first.items() if each["result"].error}
    assert failed.keys() == {"mixing", "raises"}, failed
    assert failed["mixing"].kind == "refused"
    assert "depends on the others in the batch" in failed["mixing"].message
    assert failed["raises"].kind == "crashed"
    assert failed["raises"].message == "rank 1: RuntimeError: raised on purpose"


def test_a_trial_tells_which_messages_each_rank_sent(
    tried: list[dict[str, dict[str, Any]]],
) -> None:
    """Of what lives on one rank nothing is sent."""
    result = tried[0]["one device"]["result"]
    sent = [rank.messages.message for rank in result.timeline.ranks]
    assert sent[0] == sent[1]
    assert sent[0]


def slow_cluster(job: LiveJob, step_seconds: float) -> Cluster:
    cluster = measure_cluster(job, step_seconds)
    nodes = tuple(replace(node, bandwidth_gbps=SLOW_GBPS) for node in cluster.nodes)
    return replace(cluster, nodes=nodes)


def tuned(rank: int, world: int) -> dict[str, Any]:
    """`autosync.tune` where placements are allowed, then training beside torch's DDP."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    generator = torch.Generator().manual_seed(rank)
    step = step_on(torch.randint(ROWS, (BATCH,), generator=generator))
    model, twin = tabled(), DistributedDataParallel(tabled())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    theirs = torch.optim.SGD(twin.parameters(), lr=1e-3, momentum=0.9)
    messages: list[str] = []

    def note(event: TuningEvent) -> None:
        messages.append(event.message)

    with patch.object(live_tuning, "measure_cluster", slow_cluster):
        after, optimizer = autosync.tune(
            step,
            model,
            optimizer,
            space=Space(placement=True),
            settings=Settings(budget=10, proposals=200, repeats=2, probe=False),
            on_event=note,
        )
    for _ in range(3):
        step(after, optimizer)
        step(twin, theirs)
    inner = after.module if isinstance(after, DistributedDataParallel) else after
    mine, wanted = inner.state_dict(), twin.module.state_dict()
    far = max(gap(mine[name], wanted[name]) for name in wanted)
    autosync.detach(after)
    return {"messages": messages, "far": far}


@pytest.mark.long
def test_a_tuning_tries_placements_where_they_are_allowed(pair: Ranks) -> None:
    first, second = pair.run(tuned)
    placed = [text for text in first["messages"] if text.startswith("placed modules")]
    assert placed, first["messages"]
    assert all(" ms" in text for text in placed), placed  # none says why it failed
    assert max(first["far"], second["far"]) < 3e-6
