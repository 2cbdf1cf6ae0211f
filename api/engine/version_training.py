"""Trains the next version of the simulator on all that was measured, and judges it."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from sqlalchemy.orm import Session

from autosync.api.db.database import Database
from autosync.api.db.tables import SimulatorPromotionRow, SimulatorVersionRow
from autosync.api.engine import training_queue
from autosync.api.engine.database_store import LeaseLost
from autosync.api.engine.registry import BUNDLED_VERSION
from autosync.api.engine.simulator_store import checkpoint_files, insert_checkpoint
from autosync.api.engine.simulator_versions import (
    NAME_OF_VERSION,
    next_number,
    version_in_use,
)
from autosync.api.engine.training_queue import TrainingClaim
from autosync.api.engine.training_trials import measured_sources
from autosync.bundled_data import data_file, data_folder
from autosync.cancellation import check_cancelled
from autosync.documents import from_json
from autosync.errors import AutosyncError
from autosync.simulator.evaluation.measured_dataset import load_dataset
from autosync.simulator.evaluation.pretraining import (
    SplitTrials,
    dataset_hash,
    held_out_accuracy,
    split_dataset,
    train_simulator,
)
from autosync.simulator.learned.bundled_simulator import FILE, FOLDER
from autosync.simulator.learned.checkpoint import (
    CheckpointCard,
    card_of,
    read_card,
    restore,
    weights_of,
)
from autosync.simulator.learned.learned_simulators import LearnedSimulator
from autosync.simulator.learned.transfer import source_of
from autosync.trials.pool.machine_lock import shared_machine_lock

log = logging.getLogger(__name__)

Say = Callable[[str], None]


def run_training(database: Database, held: TrainingClaim) -> None:
    """Run one claimed training to its end. Between its steps, trials on this machine go first;
    during one they wait, as for another measurement.

    Raises:
        LeaseLost: another worker goes on with it. OperationalError: the database is away.
        Cancelled: the worker stops.
    """
    step = ExitStack()

    def say(text: str) -> None:
        step.close()
        check_cancelled()
        step.enter_context(shared_machine_lock().held())
        training_queue.report_training(database, held, text)

    try:
        if held.fence > training_queue.MOST_CLAIMS:
            raise AutosyncError(
                f"the training was claimed {held.fence} times and never came to its end.",
                thing="training",
                value=held.training_id,
                remedy="Its worker keeps dying: look at the worker's log and at free memory.",
            )
        train_version(database, held, say)
    except AutosyncError as error:
        if isinstance(error, LeaseLost):
            raise
        training_queue.fail_training(database, held, str(error))
    finally:
        step.close()


def train_version(database: Database, held: TrainingClaim, say: Say) -> None:
    """Train, judge against the version in use, store, and promote where it is not worse."""
    say("reading what was measured")
    measured = load_dataset(data_folder("runtimes"))
    with database.reading() as session:
        parent_number = version_in_use(session)
        card, weights = _files(session, parent_number)
        sources = [*split_dataset(measured), *measured_sources(session)]
    in_use, parent = (restore(card, weights, "the version in use") for _ in range(2))
    found = train_simulator(card.recipe, sources, held.seed, say, parent.model)
    say("judging it beside the version in use")
    learned = tuple(source_of(each.learned) for each in sources)
    name_of_parent = NAME_OF_VERSION.format(parent_number)
    new_card = card_of(
        found.simulator.model,
        learned,
        found.accuracy,
        found.unseen,
        dataset_hash(measured),
        (*card.parents, name_of_parent),
    )
    _store(database, held, new_card, found.simulator, in_use, parent_number, sources)


def _store(
    database: Database,
    held: TrainingClaim,
    card: CheckpointCard,
    trained: LearnedSimulator,
    in_use: LearnedSimulator,
    parent: int,
    sources: Sequence[SplitTrials],
) -> None:
    """The version, its promotion and the end of its training, in one transaction.

    Raises:
        LeaseLost: another worker has taken the training over.
    """
    figures = [
        held_out_accuracy(simulator, sources, picks)
        for picks in (False, True)
        for simulator in (trained, in_use)
    ]
    weights = weights_of(trained)
    with database.writing() as session:
        ended = training_queue.end_training(session, held, "finished", message="")
        training_queue.check_written(held, ended)
        number = next_number(session)
        # what was promoted meanwhile was not judged beside this one
        promoted = not_worse(*figures) and version_in_use(session) == parent
        name = NAME_OF_VERSION.format(number)
        insert_checkpoint(session, name, card, weights)
        session.flush()
        session.add(
            SimulatorVersionRow(
                number=number,
                simulator=name,
                training_id=held.training_id,
                parent=parent,
                accuracy=figures[0],
                parent_accuracy=figures[1],
                pick_accuracy=figures[2],
                parent_pick_accuracy=figures[3],
                unseen_accuracy=card.accuracy,
                promoted=promoted,
            )
        )
        if promoted:
            session.add(SimulatorPromotionRow(number=number))
    log.info("version %d: %s", number, "in use" if promoted else "not better: kept aside")


def not_worse(
    accuracy: float | None,
    before: float | None,
    pick_accuracy: float | None,
    picks_before: float | None,
) -> bool:
    """Whether a version ranks what no version has seen at least as well as the one before it: all
    held-out strategies, and those that searches picked. Without any there is nothing to tell by."""
    if accuracy is None or before is None:
        return False
    no_picks = pick_accuracy is None or picks_before is None
    return accuracy >= before and (no_picks or (pick_accuracy or 0.0) >= (picks_before or 0.0))


def _files(session: Session, number: int) -> tuple[CheckpointCard, bytes]:
    if number == BUNDLED_VERSION:
        file = data_file(FOLDER, FILE)
        return read_card(file), file.read_bytes()
    card, weights = checkpoint_files(session, NAME_OF_VERSION.format(number))
    return from_json(CheckpointCard, card, source="card"), weights
