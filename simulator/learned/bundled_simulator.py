"""The trained simulator that comes with AutoSync: what ranks unless another is asked for."""

import numpy as np

from autosync.bundled_data import data_file
from autosync.cluster import Cluster
from autosync.domain import Domain
from autosync.simulator.backends import backend_of
from autosync.simulator.learned.checkpoint import CheckpointCard, load_checkpoint, read_card
from autosync.simulator.learned.features.domain_descriptor import DESCRIPTOR
from autosync.simulator.learned.learned_simulators import LearnedSimulator, gaussian_simulator
from autosync.simulator.learned.models.recipe import MEMBER_KINDS, MemberKind

LEARNED: tuple[MemberKind, ...] = ("gaussian", "trees")
"""Members of `learned`: they rank in seconds and load no torch."""
MEMBERS_OF: dict[str, tuple[MemberKind, ...]] = {
    "learned": LEARNED,
    "ensemble": MEMBER_KINDS,
    **{kind: (kind,) for kind in MEMBER_KINDS},
}
"""Which members of a trained ensemble each name stands for."""
FOLDER, FILE = "simulators", "default.safetensors"


def default_simulator(domain: Domain, name: str = "learned") -> LearnedSimulator:
    """The bundled simulator, or those of its members that MEMBERS_OF names; trials of the domain
    then correct it. Where it has learned from no cluster of the domain's backend, one that knows
    nothing yet.

    Raises:
        InvalidInput: the file was made for other features than this version's.
    """
    file = data_file(FOLDER, FILE)
    if not knows_backend(read_card(file), domain.cluster):
        return gaussian_simulator()
    return load_checkpoint(file, MEMBERS_OF[name])[0]


def knows_backend(card: CheckpointCard, cluster: Cluster) -> bool:
    """Whether any of what a simulator has learned from used the backend of a cluster: what one
    costs says nothing of another."""
    wanted = backend_of(cluster).descriptor
    place = DESCRIPTOR.index("nccl")
    return bool(np.any([source.descriptor[place] == wanted for source in card.sources]))
