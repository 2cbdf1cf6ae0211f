"""Trained models on disk: safetensors beside a JSON card that says what they were trained on."""

import platform
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import ConfigDict
from safetensors import SafetensorError
from safetensors.numpy import load, save

from autosync.bundled_data import data_file
from autosync.cluster import Cluster
from autosync.documents import STRICT, from_json, to_json
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotFound
from autosync.simulator.backends import backend_of
from autosync.simulator.learned.features.domain_descriptor import DESCRIPTOR
from autosync.simulator.learned.features.feature_names import FEATURE_VERSION
from autosync.simulator.learned.learned_simulators import (
    Calibration,
    LearnedSimulator,
    gaussian_simulator,
)
from autosync.simulator.learned.models.ensemble import arrays_of
from autosync.simulator.learned.models.learned_model import LearnedModel, make_model
from autosync.simulator.learned.models.model_arrays import below, check_arrays, nested
from autosync.simulator.learned.models.recipe import (
    MEMBER_KINDS,
    MemberKind,
    ModelKind,
    NetworkKind,
    Recipe,
)

MOST_TRIALS = 10**9
"""Of one domain."""
PARTS = ("raw", "predefined", "timeline")
"""Of the features: models read all."""
CALIBRATION = "calibration."
"""Prefix of its arrays; the others are the model's."""


@dataclass(frozen=True, slots=True)
class SourceDomain:
    """A domain that a checkpoint was trained on. descriptor: `describe_domain` of it."""

    id: str
    graph: str
    cluster: str
    trials: int
    descriptor: tuple[float, ...]
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if not 0 <= self.trials <= MOST_TRIALS:
            raise _impossible("trials", self.trials, f"0 to {MOST_TRIALS}")


@dataclass(frozen=True, slots=True)
class CheckpointCard:
    """What a checkpoint is.

    accuracy: pairs of unseen strategies it ranked rightly, None where nobody held any out; unseen:
        which strategies these were. feature_version: `features.FEATURE_VERSION` at training.
    network: "lstm" or "gat" where the kind is that, else empty. parts, on_base, layers, width: the
        features and the size of models of earlier versions; all but these defaults, and ensembles
        that name a network, are refused, as models of kind linear are. members: of an ensemble;
        those of earlier versions have linear ones, which are left out.
    dataset: hash of the bundled measurements it learned from, if of any. parents: the versions that
        it came from.
    """

    kind: ModelKind | Literal["linear"]
    sources: tuple[SourceDomain, ...]
    accuracy: float | None
    unseen: str
    seed: int
    parts: tuple[str, ...] = PARTS
    on_base: bool = True
    network: Literal[""] | NetworkKind = ""
    layers: int = 1
    width: int = 64
    feature_version: int = FEATURE_VERSION
    versions: tuple[tuple[str, str], ...] = ()
    members: tuple[MemberKind | Literal["linear"], ...] = MEMBER_KINDS
    dataset: str = ""
    parents: tuple[str, ...] = ()
    version: Literal[1] = 1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if self.accuracy is not None and not 0 <= self.accuracy <= 1:
            raise _impossible("accuracy", self.accuracy, "a share of pairs, 0 to 1")
        if not 0 <= self.seed < 2**63:
            raise _impossible("seed", self.seed, "0 to 2^63 - 1")

    @property
    def trials(self) -> int:
        return sum(source.trials for source in self.sources)

    @property
    def recipe(self) -> Recipe:
        """Raises InvalidInput: it is of a form that earlier versions had."""
        form = self.parts, self.on_base, self.layers, self.width
        named = self.kind == "ensemble" and self.network
        if self.kind == "linear" or form != (PARTS, True, 1, 64) or named:
            raise InvalidInput(
                f"the checkpoint has tensors that this version does not read: of kind {self.kind}, "
                f"features {', '.join(self.parts)}, size {self.layers} x {self.width}, network "
                f"{self.network!r}.",
                thing="checkpoint",
                value=self.kind,
                remedy="Train it again on its trials.",
            )
        members = tuple(member for member in self.members if member != "linear")
        return Recipe(self.kind, members)


def save_checkpoint(
    path: Path,
    simulator: LearnedSimulator,
    sources: tuple[SourceDomain, ...],
    accuracy: float | None,
    unseen: str,
    dataset: str = "",
) -> CheckpointCard:
    """Write PATH.safetensors and PATH.json."""
    card = card_of(simulator.model, sources, accuracy, unseen, dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".safetensors").write_bytes(weights_of(simulator))
    path.with_suffix(".json").write_text(to_json(card) + "\n")
    return card


def weights_of(simulator: LearnedSimulator) -> bytes:
    """What a simulator has learned, in the safetensors format: the same bytes every time."""
    arrays = simulator.model.arrays() | nested(CALIBRATION, simulator.calibration.arrays())
    return bytes(save({name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)}))


def read_card(path: Path) -> CheckpointCard:
    """The card of a checkpoint, whatever its feature version.

    Raises:
        NotFound: no card there. InvalidInput: it is none.
    """
    file = path.with_suffix(".json")
    if not file.is_file():
        raise NotFound(
            f"there is no checkpoint {str(path)!r}.",
            thing="checkpoint",
            value=str(path),
            remedy="Give the path of a .safetensors file with its .json beside it.",
        )
    return from_json(CheckpointCard, file.read_text(), source=file.name)


def load_checkpoint(
    path: Path, members: tuple[MemberKind, ...] | None = None
) -> tuple[LearnedSimulator, CheckpointCard]:
    """The simulator as it was saved; members: as `restore`.

    Raises:
        NotFound: no checkpoint there. InvalidInput: as `restore`.
    """
    card = read_card(path)
    try:
        weights = path.with_suffix(".safetensors").read_bytes()
    except OSError as error:
        raise _damaged(path.name, f"cannot be read: {error.strerror}") from None
    return restore(card, weights, path.name, members), card


def restore(
    card: CheckpointCard,
    weights: bytes,
    name: str,
    members: tuple[MemberKind, ...] | None = None,
) -> LearnedSimulator:
    """The simulator of a card and its safetensors, which are data: nothing in them is executed.

    members: some of an ensemble's, to read these alone (networks load torch); any other kind of
        model is read whole.

    Raises:
        InvalidInput: it was trained on other features, no model can be as the card says, or the
            tensors are not those of the card.
    """
    if card.feature_version != FEATURE_VERSION:
        raise InvalidInput(
            f"checkpoint {name} was trained on features of version {card.feature_version}, "
            f"this is version {FEATURE_VERSION}: its weights mean something else.",
            thing="feature_version",
            value=card.feature_version,
            remedy="Train it again on its trials.",
        )
    recipe = card.recipe
    try:
        arrays = load(weights)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(name, f"holds no tensors in the safetensors format: {error}") from None
    if any(len(source.descriptor) != len(DESCRIPTOR) for source in card.sources):
        raise _damaged(name, f"a source is described by other than {len(DESCRIPTOR)} numbers")
    calibration = below(CALIBRATION, arrays)
    recipe = replace(recipe, members=members or recipe.members)
    try:
        if card.kind == "ensemble" and recipe.members != card.members:
            some = arrays_of(recipe.members, arrays, card.members)
            arrays = some | nested(CALIBRATION, calibration)
        simulator = LearnedSimulator(make_model(recipe, card.seed))
        forms = simulator.model.array_forms(arrays)
        check_arrays(arrays, forms | nested(CALIBRATION, Calibration.array_forms(calibration)))
    except InvalidInput as error:
        raise _damaged(name, error.message) from None
    simulator.model.load(arrays)
    simulator.calibration = Calibration.from_arrays(calibration)
    return simulator


def _impossible(field: str, value: object, allowed: str) -> InvalidInput:
    return InvalidInput(
        f"the card's {field} is {value!r}; it must be {allowed}.",
        thing=field,
        value=value,
        remedy="Give the .json that `save_checkpoint` wrote beside the tensors.",
    )


def _damaged(name: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"checkpoint {name}: {why}.",
        thing="checkpoint",
        value=name,
        remedy="Copy its .safetensors and its .json again, both as `save_checkpoint` wrote them.",
    )


def card_of(
    model: LearnedModel,
    sources: tuple[SourceDomain, ...],
    accuracy: float | None,
    unseen: str,
    dataset: str = "",
    parents: tuple[str, ...] = (),
) -> CheckpointCard:
    """The fields are those of the card."""
    recipe = model.recipe
    return CheckpointCard(
        recipe.kind,
        sources,
        accuracy,
        unseen,
        model.seed,
        network=recipe.kind if recipe.kind == "lstm" or recipe.kind == "gat" else "",
        versions=(
            *((name, version(name)) for name in ("torch", "scikit-learn", "numpy")),
            ("python", platform.python_version()),
        ),
        members=recipe.members,
        dataset=dataset,
        parents=parents,
    )


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
