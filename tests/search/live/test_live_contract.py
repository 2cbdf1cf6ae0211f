"""What every pool of trials must do, on the ranks of a running job."""

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.documents import from_json
from autosync.domain import Domain
from autosync.trials.contract import TrialRequest, TrialResult
from autosync.trials.live.job import LiveJob, open_control
from autosync.trials.live.job_cluster import measure_cluster
from autosync.trials.live.job_pool import JobPool, Verdict, serve
from autosync.trials.live.snapshot import take_snapshot
from autosync.trials.live.step_graph import record_job
from tests.autosync.runtime.ranks import ranks
from tests.autosync.trials.strategies import ddp, mixed, small_domain
from tests.search.live.live_training import (
    batch_of,
    fingerprint,
    made,
    step_on,
    summary,
    trained,
    two_hosts,
)

RANKS = 3
TRIAL_TIMEOUT = timedelta(seconds=12)
"""Of a collective: what a sound trial of three ranks never needs, beside other load too."""

HANGING_SECONDS = 20
SLOW_SECONDS = 0.5

Seen = list[dict[str, Any]]


class Faults:
    """A step that misbehaves on rank 1 as the last trial's name says."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.fault = ""
        self.calls = 0
        self.held: list[Any] = []
        self.plain = step_on(batch_of(rank, 0))

    def __call__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.calls += 1
        if self.fault and self.rank == 1 and self.calls % 3 == 2:
            if self.fault == "raise":
                raise RuntimeError("raised on purpose")
            if self.fault == "hang":
                time.sleep(HANGING_SECONDS)
            if self.fault == "slow":
                time.sleep(SLOW_SECONDS)
        if self.fault == "late" and self.rank == 1 and self.calls == 4:  # the others are done
            raise RuntimeError("raised at the end")
        if self.fault == "keep":
            self.held.append(model)
        self.plain(model, optimizer)
        if self.fault == "drift" and self.rank == 1:
            with torch.no_grad():
                next(iter(model.parameters())).add_(1.0)


def contract(rank: int, world: int) -> dict[str, Any]:
    """What every pool must do, on a job's own ranks. The fault of a trial travels in its key."""
    two_hosts(rank)
    model, optimizer = made(rank)
    step = Faults(rank)
    control = open_control(timedelta(minutes=10))
    before = take_snapshot(model, [optimizer])
    print_before = fingerprint(model, optimizer)
    job = LiveJob(step, model, optimizer, before, control, TRIAL_TIMEOUT)
    recorded = record_job(job, None, "cpu")
    job.renew_groups()
    cluster = measure_cluster(job, recorded.step_seconds)
    mine = Domain(recorded.graph, cluster, recorded.profile, recorded.optimizer)
    domain = control.from_first(mine)  # ranks may record other orders
    results: dict[str, Any] = {}
    for fault, bundle in (
        ("", ddp(domain)),
        ("", mixed(domain)),
        ("raise", ddp(domain)),
        ("", mixed(domain)),
        ("raise", mixed(domain)),
        ("", ddp(domain)),
        ("hang", mixed(domain)),
        ("hang", ddp(domain)),
        ("keep", ddp(domain)),
        ("drift", ddp(domain)),
        ("late", mixed(domain)),
        ("slow", mixed(domain)),
        ("", mixed(domain)),
    ):
        key = f"{len(results)}:{fault}:{bundle.plan.engine}"
        step.fault, step.calls = fault, 0
        if rank:
            results[key] = serve(job).reason
        else:
            pool = JobPool(job, "job (test)")
            begun = time.monotonic()
            may = SLOW_SECONDS / 2 if fault == "slow" else 60.0
            result = pool.run(
                TrialRequest(key, bundle, warmup=1, iterations=3, record=True, timeout_seconds=may)
            )
            assert pool.run(TrialRequest(key, bundle)) is result
            results[key] = summary(result, time.monotonic() - begun)
            if len(results) == 1:
                other = pool.run(TrialRequest("other", ddp(small_domain(5))))
                results["other"] = summary(other, 0.0)
            pool.dismiss(Verdict(bundle))
        step.held.clear()
        assert fingerprint(model, optimizer) == print_before, key
    job.end_groups()
    twin, twin_optimizer = made(rank)
    theirs = trained(DistributedDataParallel(twin), twin_optimizer, rank)
    going_on = autosync.distribute(model, optimizer, mixed(domain))
    mine_after = trained(*going_on, rank)
    return {
        "difference": max(
            float((a - b).abs().max()) for a, b in zip(mine_after, theirs, strict=True)
        ),
        "results": results,
        "variables": [v.name for v in domain.graph.variables],
        "gradient_order": [domain.graph.variables[v].name for v in domain.graph.gradient_order],
        "batch_size": domain.batch_size,
        "forward": sum(recorded.profile.forward_seconds),
        "backward": sum(recorded.profile.backward_seconds),
        "step": recorded.step_seconds,
        "hosts": len(cluster.nodes),
        "gbps": [node.bandwidth_gbps for node in cluster.nodes],
        "intra_gbps": [node.intra_bandwidth_gbps for node in cluster.nodes],
        "optimizer": [recorded.optimizer.name, recorded.optimizer.state_tensors],
    }


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    with ranks(RANKS) as pool:
        yield pool.run(contract)


def results(seen: Seen) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = seen[0]["results"]
    return found


def test_faults_cost_their_own_trial(seen: Seen) -> None:
    """Every faulty trial is followed by a good one, the last included."""
    by_fault: dict[str, list[dict[str, Any]]] = {}
    for key, result in results(seen).items():
        by_fault.setdefault(key.split(":")[1] if ":" in key else key, []).append(result)
    assert [result["kind"] for result in by_fault[""]] == [""] * 5
    assert by_fault["slow"][0]["kind"] == "timeout"
    assert "all that they may" in by_fault["slow"][0]["message"]
    assert all(result["iterations"] >= 3 for result in by_fault[""])
    for raised in by_fault["raise"]:
        assert raised["kind"] == "crashed"
        assert raised["message"] == "rank 1: RuntimeError: raised on purpose"
    assert [result["kind"] for result in by_fault["hang"]] == ["timeout", "timeout"]
    assert "keeps a reference" in by_fault["keep"][0]["message"]
    assert by_fault["late"][0]["message"] == "rank 1: RuntimeError: raised at the end"
    assert "ended unequal" in by_fault["drift"][0]["message"]
    assert by_fault["other"][0]["kind"] == "refused"


def test_a_trial_tells_what_a_running_job_can_know(seen: Seen) -> None:
    sound = {key: r["result"] for key, r in results(seen).items() if "::" in key}
    for key, result in sound.items():
        told = from_json(TrialResult, json.dumps(result))
        assert {name for name, _ in told.versions} == {"torch", "autosync", "python"}
        assert told.load is not None
        assert 0 <= told.load <= 1
        assert told.peak_memory_bytes is not None
        assert told.peak_memory_bytes > 2**20
        assert told.sent_bytes == ()  # two hosts by name, on one kernel
        assert told.timeline is not None
        assert told.timeline.clock == "shared"
        assert len(told.timeline.ranks) == RANKS
        for rank in told.timeline.ranks:
            assert {"forward", "backward", "update"} <= set(rank.compute.phase)
            assert (rank.messages is None) == key.endswith("ddp")
            if rank.messages is not None:
                assert set(rank.messages.message) == set(range(len(rank.messages.message)))
                assert rank.messages.message


def test_a_given_strategy_trains_on_as_ddp_would(seen: Seen) -> None:
    assert all(rank["difference"] < 1e-5 for rank in seen)


def test_the_recorded_domain(seen: Seen) -> None:
    found = seen[0]
    assert found["variables"][0] == found["gradient_order"][-1] == "embedding.weight"  # tied
    assert sorted(found["variables"]) == sorted(found["gradient_order"])
    assert found["gradient_order"].index("layers.1.linear1.weight") < found["gradient_order"].index(
        "layers.0.linear1.weight"
    )
    assert found["batch_size"] == 4
    assert 0 < found["forward"] + found["backward"] <= found["step"]
    assert found["hosts"] == 2
    assert all(rate > 0 for rate in found["gbps"])
    assert found["intra_gbps"][0] > 0
    assert found["intra_gbps"][1] is None
    assert found["optimizer"] == ["adamw", 2]
