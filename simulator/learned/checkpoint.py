"""Trained models on disk: safetensors beside a JSON card that says what they know."""

import platform
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict
from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from autosync.documents import STRICT, from_json, to_json
from autosync.errors import InvalidInput, NotFound
from simulator.learned.calibration import Calibration
from simulator.learned.data import Scaling
from simulator.learned.descriptor import DESCRIPTOR
from simulator.learned.ensemble import EnsembleModel
from simulator.learned.features import FEATURE_VERSION, PARTS, Part
from simulator.learned.gaussian import Gaussian, Setting
from simulator.learned.models import GaussianModel, LinearModel, Model
from simulator.learned.network_model import NetworkKind, NetworkModel
from simulator.learned.residual import Ridge
from simulator.learned.simulators import LearnedSimulator
from simulator.learned.soundness import wrong_in_tensors
from simulator.learned.training import Training

Arrays = dict[str, NDArray[np.generic]]
Kind = Literal["linear", "gaussian", "lstm", "gat", "ensemble"]

MOST_TRIALS = 10**9
"""Of one domain."""


@dataclass(frozen=True, slots=True)
class Source:
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
class Card:
    """What a checkpoint is.

    accuracy: pairs of unseen strategies it ranked rightly, None where nobody held any out; unseen:
        which strategies these were. feature_version: `features.FEATURE_VERSION` at training.
    """

    kind: Kind
    sources: tuple[Source, ...]
    accuracy: float | None
    unseen: str
    seed: int
    parts: tuple[Part, ...]
    on_base: bool
    network: Literal["", "lstm", "gat"] = ""
    layers: int = 1
    width: int = 64
    feature_version: int = FEATURE_VERSION
    versions: tuple[tuple[str, str], ...] = ()
    version: Literal[1] = 1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if self.accuracy is not None and not 0 <= self.accuracy <= 1:
            raise _impossible("accuracy", self.accuracy, "a share of pairs, 0 to 1")
        if not 0 <= self.seed < 2**63:
            raise _impossible("seed", self.seed, "0 to 2^63 - 1")
        if min(self.layers, self.width) < 1:
            raise _impossible("layers, width", (self.layers, self.width), "1 at the least")

    @property
    def trials(self) -> int:
        return sum(source.trials for source in self.sources)


def save_checkpoint(
    path: Path,
    simulator: LearnedSimulator,
    sources: tuple[Source, ...],
    accuracy: float | None,
    unseen: str,
) -> Card:
    """Write PATH.safetensors and PATH.json."""
    card = _card(simulator.model, sources, accuracy, unseen)
    arrays: Arrays = dict(_arrays(simulator.model, ""))
    calibration = simulator.calibration
    arrays["calibration.scores"] = calibration.scores
    arrays["calibration.log_seconds"] = calibration.log_seconds
    arrays["calibration.margin"] = np.array([calibration.margin])
    path.parent.mkdir(parents=True, exist_ok=True)
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(contiguous, path.with_suffix(".safetensors"))
    path.with_suffix(".json").write_text(to_json(card) + "\n")
    return card


def read_card(path: Path) -> Card:
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
    return from_json(Card, file.read_text(), source=file.name)


def load_checkpoint(path: Path) -> tuple[LearnedSimulator, Card]:
    """The simulator as it was saved.

    Raises:
        NotFound: no checkpoint there. InvalidInput: as `restore`.
    """
    card = read_card(path)
    try:
        weights = path.with_suffix(".safetensors").read_bytes()
    except OSError as error:
        raise _damaged(path.name, f"cannot be read: {error.strerror}") from None
    return restore(card, weights, path.name), card


def restore(card: Card, weights: bytes, name: str) -> LearnedSimulator:
    """The simulator of a card and its safetensors, which are data: nothing in them is executed.

    Raises:
        InvalidInput: it was trained on other features, the card says what cannot be, or the
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
    try:
        arrays: Arrays = dict(load(weights))
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(name, f"holds no tensors in the safetensors format: {error}") from None
    if any(len(source.descriptor) != len(DESCRIPTOR) for source in card.sources):
        raise _damaged(name, f"a source is described by other than {len(DESCRIPTOR)} numbers")
    simulator = LearnedSimulator(_model(card))
    if wrong := wrong_in_tensors(simulator.model, arrays):
        raise _damaged(name, wrong)
    _restore(simulator.model, arrays, "")
    simulator.calibration = Calibration(
        arrays["calibration.scores"],  # type: ignore[arg-type]
        arrays["calibration.log_seconds"],  # type: ignore[arg-type]
        float(arrays["calibration.margin"][0]),
    )
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


def _card(model: Model, sources: tuple[Source, ...], accuracy: float | None, unseen: str) -> Card:
    versions = (
        ("torch", torch.__version__),
        ("numpy", np.__version__),
        ("python", platform.python_version()),
    )
    common = {"sources": sources, "accuracy": accuracy, "unseen": unseen, "versions": versions}
    if isinstance(model, LinearModel):
        return Card("linear", seed=0, parts=model.parts, on_base=model.on_base, **common)  # type: ignore[arg-type]
    if isinstance(model, GaussianModel):
        return Card("gaussian", seed=0, parts=PARTS, on_base=True, **common)  # type: ignore[arg-type]
    first = model.members[0] if isinstance(model, EnsembleModel) else model
    assert isinstance(first, NetworkModel)
    return Card(
        "ensemble" if isinstance(model, EnsembleModel) else first.kind,
        seed=first.training.seed,
        parts=first.parts,
        on_base=first.on_base,
        network=first.kind,
        layers=first.layers,
        width=first.width,
        **common,  # type: ignore[arg-type]
    )


def _model(card: Card) -> Model:
    if card.kind == "linear":
        return LinearModel(card.parts, card.on_base)
    if card.kind == "gaussian":
        return GaussianModel()
    kind: NetworkKind = "gat" if card.network == "gat" else "lstm"
    training = Training(seed=card.seed)
    if card.kind == "ensemble":
        return EnsembleModel(kind, training)
    return NetworkModel(kind, training, card.parts, card.on_base, card.layers, card.width)


def _arrays(model: Model, prefix: str) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Every tensor of a model by name; what was never trained is left out."""
    if isinstance(model, LinearModel):
        for name, ridge in (("ridge", model.ridge), ("prior", model.prior)):
            if ridge is not None:
                for field in ("center", "scale", "weights", "covariance"):
                    yield f"{prefix}{name}.{field}", getattr(ridge, field)
                yield f"{prefix}{name}.penalty", np.array([ridge.penalty])
    elif isinstance(model, GaussianModel):
        for name, gaussian in (("own", model.own), ("prior", model.prior)):
            if gaussian is not None:
                for field in ("center", "scale", "known", "coefficients", "precision"):
                    yield f"{prefix}{name}.{field}", getattr(gaussian, field)
                yield f"{prefix}{name}.setting", np.array(astuple(gaussian.setting))
                yield f"{prefix}{name}.variance", np.array([gaussian.variance])
                yield f"{prefix}{name}.share", np.array([model.share])
    elif isinstance(model, NetworkModel) and model.network is not None:
        assert model.scaling is not None
        for name, scaling in zip(("portions", "summary"), model.scaling, strict=True):
            yield f"{prefix}{name}.center", scaling.center
            yield f"{prefix}{name}.scale", scaling.scale
        for name, tensor in model.network.state_dict().items():
            yield f"{prefix}network.{name}", tensor.numpy()
    elif isinstance(model, EnsembleModel):
        yield from _arrays(model.gaussian, f"{prefix}gaussian.")
        yield f"{prefix}weight", np.array([model.weight])
        for number, member in enumerate(model.members):
            yield from _arrays(member, f"{prefix}member{number}.")


def _restore(model: Model, arrays: Arrays, prefix: str) -> None:
    """The inverse of `_arrays`: a restored model goes on learning from where it stands."""
    if isinstance(model, LinearModel):
        model.ridge = _ridge(arrays, f"{prefix}ridge.")
        model.prior = _ridge(arrays, f"{prefix}prior.") or model.ridge
    elif isinstance(model, GaussianModel):
        model.own = _gaussian(arrays, f"{prefix}own.")
        model.prior = _gaussian(arrays, f"{prefix}prior.")
        if model.prior is None:
            model.own, model.prior = None, model.own
        else:
            model.share = float(arrays[f"{prefix}prior.share"][0])
    elif isinstance(model, NetworkModel):
        names = [name for name in arrays if name.startswith(f"{prefix}network.")]
        if not names:
            return
        scaling = [
            Scaling(arrays[f"{prefix}{part}.center"], arrays[f"{prefix}{part}.scale"])  # type: ignore[arg-type]
            for part in ("portions", "summary")
        ]
        state = {
            name.removeprefix(f"{prefix}network."): torch.from_numpy(arrays[name]) for name in names
        }
        model.scaling = scaling[0], scaling[1]
        model.network = model.build()
        model.network.load_state_dict(state)
        model.network.eval()
        model.prior = state
    elif isinstance(model, EnsembleModel):
        _restore(model.gaussian, arrays, f"{prefix}gaussian.")
        model.weight = float(arrays[f"{prefix}weight"][0])
        for number, member in enumerate(model.members):
            _restore(member, arrays, f"{prefix}member{number}.")


def _gaussian(arrays: Arrays, prefix: str) -> Gaussian | None:
    if f"{prefix}coefficients" not in arrays:
        return None
    fields = ("center", "scale", "known", "coefficients", "precision")
    center, scale, known, coefficients, precision = (
        np.asarray(arrays[f"{prefix}{field}"], dtype=np.float64) for field in fields
    )
    setting = Setting(*(float(value) for value in arrays[f"{prefix}setting"]))
    variance = float(arrays[f"{prefix}variance"][0])
    return Gaussian(center, scale, known, coefficients, precision, setting, variance)


def _ridge(arrays: Arrays, prefix: str) -> Ridge | None:
    if f"{prefix}weights" not in arrays:
        return None
    fields = [arrays[f"{prefix}{field}"] for field in ("center", "scale", "weights")]
    penalty = float(arrays[f"{prefix}penalty"][0])
    return Ridge(*fields, penalty, arrays[f"{prefix}covariance"])  # type: ignore[arg-type, call-arg]
