"""What every pool of trials must do, on the ranks of a running job."""

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import Store
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.domain import Domain
from autosync.trials.contract import TrialRequest, TrialResult
from autosync.trials.live.job import ControlGroup, LiveJob, open_control
from autosync.trials.live.job_cluster import measure_cluster
from autosync.trials.live.job_pool import JobPool, Verdict, serve
from autosync.trials.live.snapshot import take_snapshot
from autosync.trials.live.step_graph import record_job
from tests.autosync.runtime.cases import gap
from tests.autosync.runtime.ranks import ranks
from tests.autosync.trials.strategies import ddp, mixed, small_domain
from tests.search.live.live_training import (
    BATCH,
    batch_of,
    fingerprint,
    loss_on,
    made,
    step_on,
    trained,
    two_hosts,
)

pytestmark = pytest.mark.timeout(600)

RANKS = 3
TRIAL_TIMEOUT = timedelta(seconds=12)
"""Of a collective: what a sound trial of three ranks never needs, beside other load too."""

SLOW_SECONDS = 0.5

Seen = list[dict[str, Any]]


class Faults:
    """A step that misbehaves on rank 1 as the last trial's name says. One that hangs does so until
    the other ranks have given up their part in the trial."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.fault = ""
        self.trial = 0
        self.calls = 0
        self.held: list[Any] = []
        self.plain = step_on(batch_of(rank, 0))

    def __call__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.calls += 1
        if self.fault and self.rank == 1 and self.calls % 3 == 2:
            if self.fault == "raise":
                raise RuntimeError("raised on purpose")
            if self.fault == "hang":
                others = [f"over/{self.trial}/{rank}" for rank in range(RANKS) if rank != 1]
                default_store().wait(others, timedelta(seconds=120))
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


def default_store() -> Store:
    return dist.distributed_c10d._get_default_store()


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
    mine = recorded.domain_on(cluster)
    domain = control.from_first(mine)  # ranks may record other orders
    results: dict[str, TrialResult] = {}
    meet = ControlGroup.meet

    def meet_when_over(control: ControlGroup, patience: timedelta) -> None:
        default_store().set(f"over/{step.trial}/{rank}", "")
        meet(control, patience)

    trials = (
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
    )
    with patch.object(ControlGroup, "meet", meet_when_over):
        for number, (fault, bundle) in enumerate(trials):
            key = f"{number}:{fault}:{bundle.plan.engine}"
            step.fault, step.trial, step.calls = fault, number, 0
            if rank:
                serve(job)
            else:
                pool = JobPool(job, "job (test)")
                may = SLOW_SECONDS / 2 if fault == "slow" else 60.0
                request = TrialRequest(
                    key, bundle, warmup=1, iterations=3, record=True, timeout_seconds=may
                )
                results[key] = pool.run(request)
                assert pool.run(TrialRequest(key, bundle)) is results[key]
                if len(results) == 1:
                    results["other"] = pool.run(TrialRequest("other", ddp(small_domain(5))))
                pool.dismiss(Verdict(bundle))
            step.held.clear()
            assert fingerprint(model, optimizer) == print_before, key
    job.end_groups()
    twin, twin_optimizer = made(rank)
    theirs = trained(DistributedDataParallel(twin), twin_optimizer, rank)
    going_on = autosync.distribute(model, optimizer, mixed(domain))
    mine_after = trained(*going_on, rank)
    return {
        "difference": max(gap(a, b) for a, b in zip(mine_after, theirs, strict=True)),
        "results": results,
        "domain": domain,
        "step_seconds": recorded.step_seconds,
    }


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    with ranks(RANKS) as pool:
        yield pool.run(contract)


def test_faults_cost_their_own_trial(seen: Seen) -> None:
    """Every faulty trial is followed by a good one, the last included."""
    told: dict[str, list[tuple[str, str]]] = {}
    for key, result in seen[0]["results"].items():
        error = result.error
        told.setdefault(key.split(":")[1] if ":" in key else key, []).append(
            (error.kind, error.message) if error else ("", "")
        )
    assert told[""] == [("", "")] * 5
    assert told["raise"] == [("crashed", "rank 1: RuntimeError: raised on purpose")] * 2
    assert [kind for kind, _ in told["hang"]] == ["timeout", "timeout"], told["hang"]
    assert told["slow"][0][0] == "timeout"
    assert "all that they may" in told["slow"][0][1]
    assert "keeps a reference" in told["keep"][0][1]
    assert told["late"][0][1] == "rank 1: RuntimeError: raised at the end"
    assert "ended unequal" in told["drift"][0][1]
    assert told["other"][0][0] == "refused"


def test_a_trial_tells_what_a_running_job_can_know(seen: Seen) -> None:
    for key, told in seen[0]["results"].items():
        if "::" not in key:
            continue
        assert len(told.iteration_seconds) >= 3
        assert {name for name, _ in told.versions} == {"torch", "autosync", "python"}
        assert 0 <= told.load <= 1
        assert told.peak_memory_bytes > 2**20
        assert told.sent_bytes == ()  # two hosts by name, on one kernel
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
    domain: Domain = seen[0]["domain"]
    names = [variable.name for variable in domain.graph.variables]
    order = [names[variable] for variable in domain.graph.gradient_order]
    assert names[0] == order[-1] == "embedding.weight"  # tied
    assert sorted(names) == sorted(order)
    first, second = (order.index(f"layers.{layer}.linear1.weight") for layer in (0, 1))
    assert second < first
    assert domain.batch_size == BATCH
    profile, nodes = domain.profile, domain.cluster.nodes
    compute_seconds = sum(profile.forward_seconds) + sum(profile.backward_seconds)
    assert 0 < compute_seconds <= seen[0]["step_seconds"]
    assert all(node.bandwidth_gbps > 0 for node in nodes)
    both, one = (node.intra_bandwidth_gbps for node in nodes)
    assert both is not None
    assert both > 0
    assert one is None
    assert (domain.optimizer.name, domain.optimizer.state_tensors) == ("adamw", 2)


def timeline_of_two_batches(rank: int, world: int) -> Any:
    model, optimizer = made(rank)

    def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        with model.no_sync():
            loss_on(model, batch_of(rank, 0)).backward()
        loss_on(model, batch_of(rank, 1)).backward()
        optimizer.step()

    control = open_control(timedelta(minutes=10))
    before = take_snapshot(model, [optimizer])
    job = LiveJob(step, model, optimizer, before, control, timedelta(minutes=1))
    recorded = record_job(job, None, "cpu")
    job.renew_groups()
    domain = control.from_first(recorded.domain_on(measure_cluster(job, recorded.step_seconds)))
    bundle = mixed(domain)
    if rank:
        serve(job)
        return None
    pool = JobPool(job, "job (test)")
    result = pool.run(TrialRequest("two", bundle, warmup=1, iterations=3, record=True))
    pool.dismiss(Verdict(bundle))
    return result


def test_a_step_of_two_batches_is_recorded_from_the_second_on() -> None:
    with ranks(2) as pool:
        result = pool.run(timeline_of_two_batches)[0]
    assert result.error is None
    assert result.timeline.step_seconds < max(result.iteration_seconds)
    for rank in result.timeline.ranks:
        phases = [phase for phase in rank.compute.phase if phase != "wait"]
        assert list(dict.fromkeys(phases)) == ["forward", "backward", "update"]
        backward = rank.compute.phase.index("backward")
        assert min(rank.messages.queued_seconds) >= rank.compute.start_seconds[backward]
