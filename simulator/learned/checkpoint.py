"""Trained simulators on disk: safetensors beside a JSON card that says what they were trained on.

A checkpoint is the trials that a process keeps of every domain, and its kernel. What is read is
data: nothing in it is executed, and it is checked tensor by tensor before anything uses it.
"""

import json
import platform
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict
from safetensors import SafetensorError
from safetensors.numpy import load, save

from autosync.bundled_data import data_file
from autosync.documents import STRICT, from_json, to_json
from autosync.errors import InvalidInput, NotFound
from autosync.simulator.learned.features.domain_descriptor import DESCRIPTOR
from autosync.simulator.learned.features.feature_names import FEATURE_VERSION, SUMMARY_COLUMNS
from autosync.simulator.learned.features.node_features import NODE_COLUMNS
from autosync.simulator.learned.gaussian_process import (
    HIDDEN,
    LIMITS,
    Kernel,
    SourceTrials,
    start_kernel,
)
from autosync.simulator.learned.learned_simulator import LearnedSimulator

Arrays = dict[str, NDArray[Any]]

MOST_TRIALS = 10**9
"""Of one domain."""
FOLDER, FILE = "simulators", "default.safetensors"
KERNEL, ENCODER, NETWORK = "kernel.", "encoder.", "encoder.network."
"""Prefixes of their arrays."""
OF_TRIALS = ("source", "columns", "residual", "slowness")
"""The other arrays, a row for each trial."""
RETRAIN = "Train it again on its trials: `autosync simulator train`."


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
        if len(self.descriptor) != len(DESCRIPTOR) or not np.isfinite(self.descriptor).all():
            raise _impossible("descriptor", self.descriptor, f"{len(DESCRIPTOR)} finite numbers")


@dataclass(frozen=True, slots=True)
class CheckpointCard:
    """What a checkpoint is.

    encoder: the network whose hidden state the process reads beside the columns. accuracy: share of
    the pairs of unseen strategies that it ranked rightly, None where nobody held any out; unseen:
    which strategies these were. feature_version: `FEATURE_VERSION` at training. dataset: hash of
    the bundled measurements that it learned from, if of any. parents: the versions that it came
    from.
    """

    sources: tuple[SourceDomain, ...]
    accuracy: float | None
    unseen: str
    encoder: Literal["none", "gat"] = "none"
    seed: int = 0
    feature_version: int = FEATURE_VERSION
    versions: tuple[tuple[str, str], ...] = ()
    dataset: str = ""
    parents: tuple[str, ...] = ()
    version: Literal[2] = 2
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if self.accuracy is not None and not 0 <= self.accuracy <= 1:
            raise _impossible("accuracy", self.accuracy, "a share of pairs, 0 to 1")
        if not 0 <= self.seed < 2**63:
            raise _impossible("seed", self.seed, "0 to 2^63 - 1")

    @property
    def kind(self) -> str:
        """In words."""
        return "gaussian process" + ("" if self.encoder == "none" else f" on {self.encoder}")

    @property
    def trials(self) -> int:
        return sum(source.trials for source in self.sources)


def card_of(
    sources: tuple[SourceDomain, ...],
    accuracy: float | None,
    unseen: str,
    seed: int = 0,
    dataset: str = "",
    parents: tuple[str, ...] = (),
    encoder: Literal["none", "gat"] = "none",
) -> CheckpointCard:
    """The fields are those of the card."""
    versions = tuple((name, version(name)) for name in ("torch", "numpy"))
    python = ("python", platform.python_version())
    return CheckpointCard(
        sources,
        accuracy,
        unseen,
        encoder,
        seed=seed,
        versions=(*versions, python),
        dataset=dataset,
        parents=parents,
    )


def parse_card(text: str | bytes, source: str = "card") -> CheckpointCard:
    """Raises InvalidInput: it is no card, or of an earlier version of AutoSync."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None  # which `from_json` words
    if isinstance(given, dict) and given.get("version") == 1:
        raise InvalidInput(
            f"{source} is of an earlier version of AutoSync, whose models are no longer read: "
            f"kind {str(given.get('kind'))[:40]!r}.",
            thing="version",
            value=1,
            remedy=RETRAIN,
        )
    return from_json(CheckpointCard, text, source=source)


def weights_of(simulator: LearnedSimulator) -> bytes:
    """What a simulator has learned, in the safetensors format: the same bytes every time."""
    arrays = _arrays(simulator)
    return bytes(save({name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)}))


def _arrays(simulator: LearnedSimulator) -> Arrays:
    kernel, sources, encoder = simulator.kernel, simulator.sources, simulator.encoder
    arrays: Arrays = {
        KERNEL + field.name: np.atleast_1d(getattr(kernel, field.name)) for field in fields(Kernel)
    }
    if encoder is not None:
        state = encoder.network.state_dict()
        arrays |= {NETWORK + name: tensor.numpy() for name, tensor in state.items()}
        arrays |= {ENCODER + name: getattr(encoder, name) for name in ("center", "scale")}
    counts = np.array([len(each) for each in sources], dtype=np.int64)
    arrays["source"] = np.repeat(np.arange(len(sources)), counts)
    empty = np.zeros((0, len(kernel.center)), dtype=np.float32)
    arrays["columns"] = np.concatenate([empty, *(each.columns for each in sources)])
    for name in ("residual", "slowness"):
        arrays[name] = np.concatenate([np.zeros(0), *(getattr(each, name) for each in sources)])
    return arrays


def save_checkpoint(path: Path, simulator: LearnedSimulator, card: CheckpointCard) -> None:
    """Write PATH.safetensors and PATH.json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".safetensors").write_bytes(weights_of(simulator))
    path.with_suffix(".json").write_text(to_json(card) + "\n")


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
    return parse_card(file.read_text(), file.name)


def load_checkpoint(path: Path) -> tuple[LearnedSimulator, CheckpointCard]:
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


def default_simulator() -> LearnedSimulator:
    """The simulator that comes with AutoSync; trials of a domain then correct it.

    Raises:
        InvalidInput: the file was made for other features than this version's.
    """
    return load_checkpoint(data_file(FOLDER, FILE))[0]


def restore(card: CheckpointCard, weights: bytes, name: str) -> LearnedSimulator:
    """The simulator of a card and its safetensors.

    Raises:
        InvalidInput: it was trained on other features, or the tensors are not those of the card.
    """
    if card.feature_version != FEATURE_VERSION:
        raise InvalidInput(
            f"checkpoint {name} was trained on features of version {card.feature_version}, "
            f"this is version {FEATURE_VERSION}: its tensors mean something else.",
            thing="feature_version",
            value=card.feature_version,
            remedy=RETRAIN,
        )
    try:
        arrays: Arrays = load(weights)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(name, f"holds no tensors in the safetensors format: {error}") from None
    found = _blank(card)
    _check(arrays, _arrays(found), len(card.sources), name)
    values: dict[str, Any] = {}
    for field in fields(Kernel):
        value = getattr(found.kernel, field.name)
        array = arrays[KERNEL + field.name]
        values[field.name] = float(array[0]) if isinstance(value, float) else array
    sources = []
    for number, source in enumerate(card.sources):
        rows = np.flatnonzero(arrays["source"] == number)
        columns = (arrays[part][rows] for part in ("columns", "residual", "slowness"))
        sources.append(SourceTrials(np.array(source.descriptor), *columns))
    encoder = found.encoder
    if encoder is not None:
        import torch

        network = encoder.network.eval()
        state = {key: torch.from_numpy(arrays[NETWORK + key]) for key in network.state_dict()}
        network.load_state_dict(state)
        center, scale = arrays[ENCODER + "center"], arrays[ENCODER + "scale"]
        encoder = replace(encoder, center=center, scale=scale)
    return LearnedSimulator(Kernel(**values), sources, encoder)


def _blank(card: CheckpointCard) -> LearnedSimulator:
    """Of a card's form, without a trial: every array has its type, and its shape but for that."""
    columns, encoder = len(SUMMARY_COLUMNS), None
    if card.encoder != "none":
        from autosync.simulator.learned.encoders import Encoder, gat_network  # loads torch

        ones = np.ones(len(NODE_COLUMNS), dtype=np.float32)
        encoder, columns = Encoder(gat_network(card.seed), ones, ones), columns + HIDDEN
    return LearnedSimulator(start_kernel(np.zeros(columns), np.ones(columns)), (), encoder)


def _check(arrays: Arrays, form: Arrays, sources: int, name: str) -> None:
    """Raises InvalidInput where the arrays have not the names, shapes and types of `form`, any
    number of trials apart, or their values are not those of a simulator of so many domains."""
    trials = arrays["residual"].size if "residual" in arrays else 0
    if missing := form.keys() - arrays.keys():
        raise _damaged(name, f"tensor {min(missing)!r} is missing")
    if odd := arrays.keys() - form.keys():
        raise _damaged(name, f"tensor {min(odd)!r} belongs to no simulator")
    for part, right in form.items():
        array = arrays[part]
        shape = (trials, *right.shape[1:]) if part in OF_TRIALS else right.shape
        if (array.shape, array.dtype) != (shape, right.dtype):
            raise _damaged(
                name,
                f"tensor {part!r} has shape {array.shape} and type {array.dtype}; it must be "
                f"{shape} and {right.dtype}",
            )
        if wrong := _wrong_values(part, array, sources):
            raise _damaged(name, f"tensor {part!r} {wrong}")


def _wrong_values(part: str, array: NDArray[Any], sources: int) -> str:
    """What is wrong with the values of an array; empty if nothing is."""
    if part in (KERNEL + "scale", ENCODER + "scale"):  # infinite: the column never varied
        return "" if (array > 0).all() else "holds values that are not positive"
    if not np.isfinite(array).all():
        return "holds values that are not finite"
    least, most = LIMITS.get(part.removeprefix(KERNEL), (-np.inf, np.inf))
    if not ((array >= least) & (array <= most)).all():
        return f"holds values that are not {least:g} to {most:g}"
    if part == "source" and not ((array >= 0) & (array < sources)).all():
        return "names a domain that is not there"
    return ""


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
