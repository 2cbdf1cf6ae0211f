"""What AutoSync ranks with in the live contest: a simulator that has not seen the domain's model.

The bundled simulator has learned from models that also stand in the contest. For these one is
trained on the bundled measurements of all other models, as `autosync simulator train` does, and
kept in FOLDER/simulators.
"""

from collections.abc import Sequence
from pathlib import Path

from autosync.bundled_data import data_file, data_folder
from autosync.domain import Domain
from autosync.simulator.learned.checkpoint import (
    FILE,
    CheckpointCard,
    default_simulator,
    library_versions,
    load_checkpoint,
    read_card,
    save_checkpoint,
)
from autosync.simulator.learned.checkpoint import FOLDER as SIMULATORS
from autosync.simulator.learned.learned_simulator import LearnedSimulator
from autosync.simulator.learned.training import simulator_from, source_of, split_dataset
from autosync.simulator.runtime_dataset import MeasuredDomain, dataset_hash, load_dataset


def unseen_simulator(
    domain: Domain, folder: Path, measured: Sequence[MeasuredDomain] | None = None
) -> LearnedSimulator:
    """A fresh one each time, since trials correct it. measured: what there is to learn from,
    instead of the bundled measurements."""
    graph = domain.graph.name
    bundled = read_card(data_file(SIMULATORS, FILE))
    if all(source.graph != graph for source in bundled.sources):
        return default_simulator()
    file = folder / "simulators" / f"learned_without_{graph}.safetensors"
    if not file.with_suffix(".json").is_file():
        if measured is None:
            measured = load_dataset(data_folder("runtimes"))
        _train_without(graph, file, measured)
    return load_checkpoint(file)[0]


def _train_without(graph: str, file: Path, measured: Sequence[MeasuredDomain]) -> None:
    print(f"training a simulator on all models but {graph}", flush=True)
    others = [each for each in measured if each.domain.graph.name != graph]
    learned = [each.learned for each in split_dataset(others)]
    sources = tuple(map(source_of, learned))
    card = CheckpointCard(
        sources, None, "", versions=library_versions(), dataset=dataset_hash(others)
    )
    save_checkpoint(file, simulator_from(learned), card)
