"""Trains the next version of the simulator on what was measured, and judges it."""

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.database import Database
from autosync.api.db.tables import (
    SimulatorPromotionRow,
    SimulatorRow,
    SimulatorTrainingRow,
    SimulatorVersionRow,
    TrialRow,
)
from autosync.api.engine import job_queue
from autosync.api.engine.database_store import clean
from autosync.api.engine.job_queue import Claim
from autosync.api.engine.measured_trials import (
    MeasuredTrials,
    measured_hash,
    measured_sources,
    read_measured_trials,
    source_trials,
    without_refused,
)
from autosync.api.engine.registry import BUNDLED_VERSION
from autosync.api.engine.retention import prune_versions
from autosync.api.engine.simulator_store import (
    NAME_OF_VERSION,
    checkpoint_files,
    insert_checkpoint,
    next_number,
    version_in_use,
    versions,
)
from autosync.api.engine.training_process import Say, run_beside_trials
from autosync.bundled_data import data_file, data_folder
from autosync.cancellation import check_cancelled
from autosync.documents import content_hash
from autosync.simulator.learned.checkpoint import (
    FILE,
    FOLDER,
    CheckpointCard,
    library_versions,
    parse_card,
    read_card,
    restore,
    weights_of,
)
from autosync.simulator.learned.features.feature_names import FEATURE_VERSION
from autosync.simulator.learned.training import (
    held_out_accuracy,
    source_of,
    split_dataset,
    train_simulator,
)
from autosync.simulator.runtime_dataset import load_dataset
from autosync.trials.pool.machine_lock import shared_machine_lock

NOTHING_NEW = "nothing to learn from was measured since the newest version"
STORING_SECONDS = 60.0
"""Longer than a transaction that stores a trial: one that began before a training may be there only
after it has read them all."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VersionTask:
    """All that training a version needs, as plain data: whoever makes it parses nothing.

    card, weights: of the version in use, `parent`. known: `dataset` of the newest version's card.
    """

    card: CheckpointCard
    weights: bytes
    parent: int
    measured: MeasuredTrials
    known: str
    dataset_folder: Path
    seed: int

    def __call__(self, say: Say) -> "tuple[TrainedVersion | None, str]":
        """Train, and judge it beside the version in use. None where no trial is new since the
        newest version. And what was left out, in words (`without_refused`)."""
        measured, left_out = without_refused(self.measured)
        return self._trained(measured, say), left_out

    def _trained(self, read: MeasuredTrials, say: Say) -> "TrainedVersion | None":
        found = source_trials(read)
        bundled = files_hash(self.dataset_folder)
        dataset = content_hash([FEATURE_VERSION, bundled, measured_hash(found)])
        if dataset == self.known or not found:
            return None
        if not (measured := measured_sources(read, found)):
            return None
        sources = (*split_dataset(load_dataset(self.dataset_folder)), *measured)
        in_use = restore(self.card, self.weights, "the version in use")
        outcome = train_simulator(sources, say)
        say("judging it beside the version in use")
        card = CheckpointCard(
            tuple(source_of(each.learned) for each in sources),
            outcome.accuracy,
            outcome.unseen,
            seed=self.seed,
            versions=library_versions(),
            dataset=dataset,
            parents=(*self.card.parents, NAME_OF_VERSION.format(self.parent)),
        )
        both = outcome.simulator, in_use
        figures = [
            held_out_accuracy(simulator, sources, picks)
            for picks in (False, True)
            for simulator in both
        ]
        return TrainedVersion(card, weights_of(outcome.simulator), VersionFigures(*figures))


def files_hash(folder: Path) -> str:
    """Changes with every byte and name below the folder; 32 hex digits."""
    digest = hashlib.sha256()
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(folder)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:32]


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
    promote where it is not worse. Without a new trial since the newest version it ends at once.
    Trials that cannot be read any longer are left out, which its message says at the end.

    All but reading and storing is done in a process of the lowest priority, which stands still
    while trials run on this machine.

    Raises:
        AutosyncError: it cannot be trained. LeaseLost: another worker goes on with it.
        OperationalError: the database is away. Cancelled: the worker stops.
    """

    def say(text: str) -> None:
        job_queue.report(database, held, text)

    check_cancelled()
    if not has_new_trials(database):
        return _end_without_version(database, held)
    say("reading what was measured")
    task = _task(database, held)
    check_cancelled()
    trained, left_out = run_beside_trials(task, say, shared_machine_lock())
    if left_out:
        log.warning("training %s: %s", held.job_id, left_out)
    if trained is None:
        return _end_without_version(database, held, left_out)
    _store(database, held, task.parent, trained, left_out)


def has_new_trials(database: Database) -> bool:
    """Whether a trial may be new since the newest version's training began; all are new where
    that version reads other features than this version of AutoSync."""
    newest = (
        select(SimulatorTrainingRow.started_at)
        .join(SimulatorVersionRow, SimulatorVersionRow.training_id == SimulatorTrainingRow.id)
        .join(SimulatorRow, SimulatorRow.name == SimulatorVersionRow.simulator)
        .where(SimulatorRow.feature_version == FEATURE_VERSION)
        .order_by(SimulatorVersionRow.number.desc())
        .limit(1)
    )
    with database.reading() as session:
        began = session.scalar(newest)
        since = (began or 0.0) - STORING_SECONDS
        measured = select(TrialRow.key).where(TrialRow.created_at >= since)
        return session.execute(measured.limit(1)).first() is not None


def _end_without_version(database: Database, held: Claim, left_out: str = "") -> None:
    """Raises LeaseLost."""
    message = f"{NOTHING_NEW}; {left_out}" if left_out else NOTHING_NEW
    with database.writing() as session:
        job_queue.end(session, held, "finished", message=clean(message))
    log.info("training %s: %s", held.job_id, message)


def _task(database: Database, held: Claim) -> VersionTask:
    with database.reading() as session:
        parent = version_in_use(session)
        card, weights = _files(session, parent)
        newest = versions(session, 1)
        known = _dataset_of(session, newest[0].simulator) if newest else ""
        seed = session.get_one(SimulatorTrainingRow, held.job_id).seed
    measured = read_measured_trials(database)
    folder = data_folder("runtimes")
    return VersionTask(card, weights, parent, measured, known, folder, seed)


def _dataset_of(session: Session, name: str) -> str:
    """Of the card of a version; empty where that is of other features than this version of
    AutoSync's, which may have other cards, too."""
    row = session.get_one(SimulatorRow, name)
    if row.feature_version != FEATURE_VERSION:
        return ""
    return parse_card(row.card, f"the card of {name}").dataset


def _store(
    database: Database, held: Claim, parent: int, trained: TrainedVersion, left_out: str = ""
) -> None:
    """The version, its promotion and the end of its training, in one transaction; versions beyond
    those that are kept go with it.

    Raises:
        LeaseLost: another worker has taken the training over.
    """
    figures = trained.figures
    with database.writing() as session:
        job_queue.end(session, held, "finished", message=clean(left_out))
        number = next_number(session)
        # the version of a training that ends at the same moment is waited for
        while not insert_checkpoint(
            session, name := NAME_OF_VERSION.format(number), trained.card, trained.weights
        ):
            number += 1
        # what was promoted meanwhile was not judged beside this one
        promoted = figures.not_worse and version_in_use(session) == parent
        session.add(
            SimulatorVersionRow(
                number=number,
                simulator=name,
                training_id=held.job_id,
                parent=parent,
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
        session.flush()
        prune_versions(session)
    log.info("version %d: %s", number, "in use" if promoted else "kept aside")


def _files(session: Session, number: int) -> tuple[CheckpointCard, bytes]:
    if number == BUNDLED_VERSION:
        file = data_file(FOLDER, FILE)
        return read_card(file), file.read_bytes()
    card, weights = checkpoint_files(session, NAME_OF_VERSION.format(number))
    return parse_card(card), weights
