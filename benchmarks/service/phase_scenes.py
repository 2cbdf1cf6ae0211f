"""Tunings that reach a phase soon and stay in it, so that an end can be timed there."""

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
from sqlalchemy import select

from autosync.api.db import Database
from autosync.api.db.tables import EventRow
from autosync.api.engine import job_queue
from autosync.api.engine.database_store import DatabaseStore
from autosync.api.engine.submission import enqueue
from autosync.api.engine.tuning_request import TuningRequest
from autosync.domain import Domain
from autosync.population import decode
from autosync.search.loop.design_candidates import known_designs
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import Candidate, Proposal
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.trials.pool.machine_lock import shared_machine_lock
from tests.api.sample import proposal, result

ENDLESS = 10**8
"""Proposals: a ranking of hours."""
SETTINGS = Settings(budget=4, repeats=1000, probe=False)
Event = tuple[str, str]
"""Kind and message."""


def told(kind: str, message: str) -> Callable[[list[Event], int], bool]:
    return lambda events, ranks: any((one, message in text) == (kind, True) for one, text in events)


def ranks_live(events: list[Event], ranks: int) -> bool:
    return ranks > 0


@dataclass(frozen=True, slots=True)
class PhaseScene:
    """A phase, and a tuning that comes to it.

    settings: changes to SETTINGS. simulator: that ranks. stored, measured: strategies that the
    database has already, and those of them with a trial. reached: asked with the tuning's events
    and the number of ranks that live. pause_seconds: from then until the end is asked for. gone:
    the kind of event that tells that the phase was over before.
    """

    name: str
    reached: Callable[[list[Event], int], bool]
    settings: dict[str, int | bool] = field(default_factory=dict)
    simulator: str = "timeline"
    stored: int = 0
    measured: int = 0
    pause_seconds: float = 0.5
    gone: str = ""
    cold_kernels: bool = False
    holds_machine: bool = False

    def begun(self) -> AbstractContextManager[object]:
        """What must be so meanwhile."""
        return shared_machine_lock().held() if self.holds_machine else nullcontext()


STARTS = told("opening", "starting the workers")
SCENES = (
    PhaseScene("waiting", told("waiting", "another measurement"), holds_machine=True),
    PhaseScene("opening", STARTS, pause_seconds=0.2),
    PhaseScene(
        "probing",
        lambda events, ranks: told("opening", "what messages cost")(events, ranks) and ranks > 0,
        {"probe": True},
        gone="ranking",
    ),
    PhaseScene("compiling", STARTS, pause_seconds=4.0, gone="ranking", cold_kernels=True),
    PhaseScene("ranking", told("ranking", ""), {"proposals": ENDLESS}),
    PhaseScene("trial", ranks_live, {"budget": 24}, stored=24, pause_seconds=1.5),
    PhaseScene(
        "fitting",
        STARTS,
        {"budget": 200},
        simulator="ensemble",
        stored=96,
        measured=96,
        pause_seconds=5.0,
        gone="ranking",
    ),
    PhaseScene("confirming", told("confirm", ""), stored=4, measured=4),
)


def prepared(database: Database, scene: PhaseScene, domain: Domain, scales: TuningRequest) -> str:
    """Put the scene's tuning into the queue, with what it has stored; its id. scales: a request at
    those of its trials."""
    settings = replace(SETTINGS, **scene.settings)  # type: ignore[arg-type]  # its own fields
    request = replace(scales, settings=settings, simulator=scene.simulator)
    tuning_id = enqueue(database, request)
    if scene.stored:
        with claimed(database, tuning_id) as store:
            store.propose(proposals := stored_proposals(domain, scene.stored))
            rng = random.Random(1)
            for one in proposals[: scene.measured]:
                seconds = one.candidate.predicted_seconds * rng.uniform(1, 1.3)
                store.record(result(one.key, request, seconds, rng))
    return tuning_id


@contextmanager
def claimed(database: Database, tuning_id: str) -> Iterator[DatabaseStore]:
    held = job_queue.claim(database, "prepares", tuning_id=tuning_id)
    assert held is not None
    yield DatabaseStore(database, tuning_id, held.fence)
    job_queue.release(database, held)


def stored_proposals(domain: Domain, count: int) -> list[Proposal]:
    """Hand-designed strategies, DDP first, then drawn ones."""
    simulator = TimelineSimulator()
    found = known_designs(domain, Space(), simulator)[:count]
    drawn = sample(domain, Space(), 0, count - len(found), 0)
    seconds: np.ndarray[tuple[int], np.dtype[np.float64]] = simulator.predict(domain, drawn)
    for index in range(len(drawn)):
        strategy = decode(drawn, index, domain)
        predicted = float(seconds[index])
        found.append(Candidate(strategy, predicted, simulator.name, "sampled", 0, index))
    return [proposal(each) for each in found]


def events_of(database: Database, tuning_id: str) -> list[Event]:
    """Oldest first."""
    query = select(EventRow.kind, EventRow.message).where(EventRow.tuning_id == tuning_id)
    with database.reading() as session:
        return [(row.kind, row.message) for row in session.execute(query.order_by(EventRow.id))]
