"""Trains the next version of the simulator on all that was measured, and judges it."""

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.database import Database
from autosync.api.db.document_store import load_domain, load_strategies
from autosync.api.db.tables import (
    ProposalRow,
    SimulatorPromotionRow,
    SimulatorTrainingRow,
    SimulatorVersionRow,
    TrialRow,
    TuningRow,
)
from autosync.api.engine import job_queue
from autosync.api.engine.job_queue import Claim
from autosync.api.engine.registry import BUNDLED_VERSION
from autosync.api.engine.simulator_store import (
    NAME_OF_VERSION,
    checkpoint_files,
    insert_checkpoint,
    next_number,
    version_in_use,
)
from autosync.api.engine.training_process import Say, run_beside_trials
from autosync.bundled_data import data_file, data_folder
from autosync.cancellation import check_cancelled
from autosync.documents import from_json
from autosync.domain import Domain
from autosync.population import encode
from autosync.search.loop.tuning_store import FOUND_BY_SEARCH
from autosync.simulator.extension_prediction import restates_domain
from autosync.simulator.learned.checkpoint import (
    FILE,
    FOLDER,
    CheckpointCard,
    card_of,
    read_card,
    restore,
    weights_of,
)
from autosync.simulator.learned.training import (
    SplitTrials,
    dataset_hash,
    held_out_accuracy,
    joined_trials,
    source_of,
    split_dataset,
    split_trials,
    train_simulator,
)
from autosync.simulator.runtime_dataset import load_dataset
from autosync.trials.pool.machine_lock import shared_machine_lock

FEWEST_OF_A_SOURCE = 8
"""Strategies of a domain below which its level alone is known."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Where and how trials were measured: seconds compare within one of these alone.

    family: the domain, whatever its probed costs are. host: of the worker. launcher: its kind.
    """

    family: str
    host: str
    launcher: str
    byte_scale: float
    time_scale: float
    compute: str


def family_of(domain: Domain) -> str:
    """Equal for domains of which only the probed costs differ, and what else trials correct."""
    cluster = replace(domain.cluster, costs=(), overlap_slowdown=None, link_seconds_per_send=0.0)
    return replace(domain, cluster=cluster).id


def measured_sources(session: Session) -> list[SplitTrials]:
    """A source for each of the circumstances under which enough strategies were measured, in the
    order of the first trial. A strategy's seconds are the median of all its iterations in a
    tuning; picks are what the search drew and chose."""
    columns = (
        TrialRow.domain_id,
        TrialRow.worker,
        TrialRow.launcher,
        TrialRow.byte_scale,
        TrialRow.time_scale,
        TuningRow.compute,
        ProposalRow.strategy_hash,
        ProposalRow.origin,
        TrialRow.iteration_seconds,
    )
    query = (
        select(*columns)
        .join(
            ProposalRow,
            (ProposalRow.tuning_id == TrialRow.tuning_id) & (ProposalRow.key == TrialRow.key),
        )
        .join(TuningRow, TuningRow.id == TrialRow.tuning_id)
        .where(TrialRow.step_seconds.is_not(None))
        .order_by(TrialRow.created_at, TrialRow.tuning_id, TrialRow.position)
    )
    domains: dict[str, Domain] = {}
    seconds: dict[Circumstances, dict[str, dict[str, list[float]]]] = {}
    found: set[str] = set()
    for row in session.execute(query):
        domain = domains.get(row.domain_id) or load_domain(session, row.domain_id)
        domains[row.domain_id] = domain
        where = Circumstances(
            family_of(domain),
            (row.worker or "").rpartition(":")[0],
            row.launcher.partition(" ")[0],
            row.byte_scale,
            row.time_scale,
            row.compute,
        )
        of_domain = seconds.setdefault(where, {}).setdefault(row.domain_id, defaultdict(list))
        of_domain[row.strategy_hash] += row.iteration_seconds
        if row.origin in FOUND_BY_SEARCH:
            found.add(row.strategy_hash)
    sources = []
    for by_domain in seconds.values():
        if (
            len({name for of_domain in by_domain.values() for name in of_domain})
            >= FEWEST_OF_A_SOURCE
        ):
            parts = [
                _split(session, domains[name], of_domain, found)
                for name, of_domain in by_domain.items()
            ]
            sources.append(joined_trials(parts))
    return sources


def _split(
    session: Session, domain: Domain, seconds: dict[str, list[float]], found: set[str]
) -> SplitTrials:
    """Of what this runtime and torch's DDP did with replicas: fully_shard and placed modules teach
    nothing about them."""
    strategies = load_strategies(session, set(seconds))
    names: Sequence[str] = sorted(
        name
        for name in seconds
        if strategies[name].engine is None and not restates_domain(strategies[name].extensions)
    )
    population = encode([strategies[name] for name in names], domain)
    labels = np.array([float(np.median(seconds[name])) for name in names])
    picked = np.array([name in found for name in names], dtype=np.bool_)
    return split_trials(domain, population, labels, picked)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VersionTask:
    """All that training a version needs. card, weights: of the version in use, `parent`."""

    card: CheckpointCard
    weights: bytes
    parent: int
    sources: tuple[SplitTrials, ...]
    dataset: str
    seed: int

    def __call__(self, say: Say) -> "TrainedVersion":
        """Train, and judge it beside the version in use."""
        in_use, parent = (restore(self.card, self.weights, "the version in use") for _ in range(2))
        found = train_simulator(self.card.recipe, self.sources, self.seed, say, parent.model)
        say("judging it beside the version in use")
        card = card_of(
            found.simulator.model,
            tuple(source_of(each.learned) for each in self.sources),
            found.accuracy,
            found.unseen,
            self.dataset,
            (*self.card.parents, NAME_OF_VERSION.format(self.parent)),
        )
        both = found.simulator, in_use
        figures = [
            held_out_accuracy(simulator, self.sources, picks)
            for picks in (False, True)
            for simulator in both
        ]
        return TrainedVersion(card, weights_of(found.simulator), VersionFigures(*figures))


@dataclass(frozen=True, slots=True)
class VersionFigures:
    """Shares of pairs of what no version learns from, as `held_out_accuracy`: by the version and by
    its parent; `picks`: of those that a search picked."""

    accuracy: float | None
    parent_accuracy: float | None
    pick_accuracy: float | None
    parent_pick_accuracy: float | None

    @property
    def not_worse(self) -> bool:
        """Whether a version ranks what no version has seen at least as well as the one before it:
        all held-out strategies, and those that searches picked. Without any there is nothing to
        tell by."""
        if self.accuracy is None or self.parent_accuracy is None:
            return False
        picks, before = self.pick_accuracy, self.parent_pick_accuracy
        no_picks = picks is None or before is None
        return self.accuracy >= self.parent_accuracy and (
            no_picks or (picks or 0.0) >= (before or 0.0)
        )


@dataclass(frozen=True, slots=True)
class TrainedVersion:
    card: CheckpointCard
    weights: bytes
    figures: VersionFigures


def run_training(database: Database, held: Claim) -> None:
    """Run one claimed training to its end: train, judge against the version in use, store, and
    promote where it is not worse. It stands still while trials run on this machine.

    Raises:
        AutosyncError: it cannot be trained. LeaseLost: another worker goes on with it.
        OperationalError: the database is away. Cancelled: the worker stops.
    """

    def say(text: str) -> None:
        job_queue.report(database, held, text)

    say("reading what was measured")
    check_cancelled()
    task = _task(database, held)
    check_cancelled()
    _store(database, held, task, run_beside_trials(task, say, shared_machine_lock()))


def _task(database: Database, held: Claim) -> VersionTask:
    measured = load_dataset(data_folder("runtimes"))
    with database.reading() as session:
        parent = version_in_use(session)
        card, weights = _files(session, parent)
        sources = (*split_dataset(measured), *measured_sources(session))
        seed = session.get_one(SimulatorTrainingRow, held.job_id).seed
    return VersionTask(card, weights, parent, sources, dataset_hash(measured), seed)


def _store(database: Database, held: Claim, task: VersionTask, trained: TrainedVersion) -> None:
    """The version, its promotion and the end of its training, in one transaction.

    Raises:
        LeaseLost: another worker has taken the training over.
    """
    figures = trained.figures
    with database.writing() as session:
        job_queue.end(session, held, "finished", message="")
        number = next_number(session)
        # what was promoted meanwhile was not judged beside this one
        promoted = figures.not_worse and version_in_use(session) == task.parent
        name = NAME_OF_VERSION.format(number)
        insert_checkpoint(session, name, trained.card, trained.weights)
        session.flush()
        session.add(
            SimulatorVersionRow(
                number=number,
                simulator=name,
                training_id=held.job_id,
                parent=task.parent,
                accuracy=figures.accuracy,
                parent_accuracy=figures.parent_accuracy,
                pick_accuracy=figures.pick_accuracy,
                parent_pick_accuracy=figures.parent_pick_accuracy,
                unseen_accuracy=trained.card.accuracy,
                promoted=promoted,
            )
        )
        if promoted:
            session.add(SimulatorPromotionRow(number=number))
    log.info("version %d: %s", number, "in use" if promoted else "not better: kept aside")


def _files(session: Session, number: int) -> tuple[CheckpointCard, bytes]:
    if number == BUNDLED_VERSION:
        file = data_file(FOLDER, FILE)
        return read_card(file), file.read_bytes()
    card, weights = checkpoint_files(session, NAME_OF_VERSION.format(number))
    return from_json(CheckpointCard, card, source="card"), weights
