"""Versions of the simulator as trainings leave them, without the minutes that trainings take."""

from autosync.api.db import Database
from autosync.api.db.tables import (
    SimulatorPromotionRow,
    SimulatorTrainingRow,
    SimulatorVersionRow,
)
from autosync.api.engine.simulator_store import NAME_OF_VERSION, insert_checkpoint
from autosync.simulator.learned.checkpoint import (
    CheckpointCard,
    SourceDomain,
    library_versions,
    weights_of,
)
from autosync.simulator.learned.features.domain_descriptor import DESCRIPTOR
from autosync.simulator.learned.learned_simulator import LearnedSimulator

ACCURACIES = ((0.87, 0.88), (0.9, 0.88), (0.91, 0.9))
"""Of versions 1 to 3, each beside its parent's; the first was not better than the bundled one."""
PARENTS = (0, 0, 2)


def store_versions(database: Database, tuning_id: str | None = None) -> None:
    """Three, each of more trials than the one before; the last is in use. tuning_id: at whose end
    the last was trained. May be called again."""
    sources: tuple[SourceDomain, ...] = ()
    for number, (own, before) in enumerate(ACCURACIES, 1):
        name, parent = NAME_OF_VERSION.format(number), PARENTS[number - 1]
        sources += (
            SourceDomain(f"{number}" * 32, f"chain{number}", "grid", 60, (0.5,) * len(DESCRIPTOR)),
        )
        simulator = LearnedSimulator()
        of_parents = tuple(NAME_OF_VERSION.format(each) for each in sorted({0, parent}))
        card = CheckpointCard(
            sources,
            0.8,
            "models left out",
            versions=library_versions(),
            dataset="a" * 32,
            parents=of_parents,
        )
        with database.writing() as session:
            if not insert_checkpoint(session, name, card, weights_of(simulator)):
                continue
            at_end = tuning_id if number == len(ACCURACIES) else None
            training_id = f"{number}" * 32
            training = {"id": training_id, "tuning_id": at_end, "state": "finished"}
            session.add(SimulatorTrainingRow(**training))
            session.flush()
            row = SimulatorVersionRow(
                number=number,
                simulator=name,
                training_id=training_id,
                parent=parent,
                accuracy=own,
                parent_accuracy=before,
                pick_accuracy=own - 0.1,
                parent_pick_accuracy=before - 0.1,
                unseen_accuracy=0.8,
                promoted=own > before,
            )
            session.add(row)
            if row.promoted:
                session.flush()
                session.add(SimulatorPromotionRow(number=number))
