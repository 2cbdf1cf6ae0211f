"""What messages cost in a running job: found again from ranks that take a known time."""

from dataclasses import dataclass, field, replace

import pytest

from autosync.cluster import MessageKind
from autosync.domain import Domain
from autosync.search.live.message_costs import ROOM_BYTES, measure_message_costs
from autosync.search.loop.outcome import TuningEvent
from autosync.search.loop.settings import Settings
from autosync.simulator.fitting.message_costs import link_seconds
from autosync.trials.contract import TrialError, TrialFailed
from autosync.trials.probes import MessageSample
from autosync.trials.worker.timed_messages import KINDS
from tests.domains import domain_of, grid_cluster

STARTUP_SECONDS, WORKER_SECONDS = 3e-3, 1e-3


@dataclass
class ToldJob:
    """Ranks whose messages take their links' time, and a startup that grows with their number.
    asked: for messages of these sizes."""

    domain: Domain
    fails: bool = False
    asked: list[int] = field(default_factory=list)
    scales: tuple[float, float] = (1.0, 1.0)
    at_cluster_rates: bool = True
    shaped: bool = False
    events: list[TuningEvent] = field(default_factory=list)

    def time_messages(
        self, kind: MessageKind, size_bytes: int, workers: tuple[int, ...], repeats: int
    ) -> list[float]:
        self.asked.append(size_bytes)
        if self.fails:
            raise TrialFailed(TrialError("crashed", "rank 1: no."))
        sample = MessageSample(kind, size_bytes, workers, 0.0)
        seconds = STARTUP_SECONDS + WORKER_SECONDS * len(workers)
        return [seconds + link_seconds(self.domain.cluster, sample)] * repeats

    def measured(self, settings: Settings, until: float = 1.0, now: float = 0.0) -> Domain:
        return measure_message_costs(
            self, self.domain, settings, until, self.events.append, lambda: now
        )

    @property
    def told(self) -> list[str]:
        return [event.message for event in self.events]


@pytest.fixture
def job() -> ToldJob:
    return ToldJob(domain_of(cluster=grid_cluster(4)))


def test_costs_are_fitted_to_what_the_ranks_took(job: ToldJob) -> None:
    found = job.measured(Settings())
    assert replace(found, cluster=job.domain.cluster) == job.domain
    assert {cost.kind for cost in found.cluster.costs} == set(KINDS)
    for cost in found.cluster.costs:
        assert cost.startup_seconds == pytest.approx(STARTUP_SECONDS, rel=0.05)
        assert cost.startup_seconds_per_worker == pytest.approx(WORKER_SECONDS, rel=0.05)
    assert job.told == ["measuring what messages cost"]


def test_a_job_that_is_not_probed_says_so(job: ToldJob) -> None:
    assert job.measured(Settings(probe=False)) is job.domain
    assert job.told == ["message costs are assumed: the settings ask for no probe."]
    assert not job.asked


def test_a_probe_ends_with_its_time(job: ToldJob) -> None:
    assert job.measured(Settings(), until=1.0, now=1.0) is job.domain
    assert "there was time for 0 of" in job.told[-1]
    assert not job.asked


def test_a_failure_costs_the_probe_alone(job: ToldJob) -> None:
    job.fails = True
    assert job.measured(Settings()) is job.domain
    assert job.told[-1] == "message costs are assumed: rank 1: no."


def test_two_ranks_cannot_tell_a_startup_from_a_workers_share() -> None:
    pair = ToldJob(domain_of(cluster=grid_cluster(2)))
    assert pair.measured(Settings()) is pair.domain
    assert "has 2 ranks" in pair.told[-1]


def test_a_rank_has_room_for_what_all_others_send_it() -> None:
    many = ToldJob(domain_of(cluster=grid_cluster(64, gbps=10.0)))
    many.measured(Settings())
    assert max(many.asked) == ROOM_BYTES // 63
