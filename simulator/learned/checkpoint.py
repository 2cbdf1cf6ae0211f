"""Trained simulators on disk: safetensors beside a JSON card that says what they were trained on.

A checkpoint is the trials that a process keeps of every domain, and its kernel. What is read is
data: nothing in it is executed, and it is checked tensor by tensor before anything uses it.
"""

import platform
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from safetensors import SafetensorError
from safetensors.numpy import load, save

from autosync.atomic_write import replaced_atomically
from autosync.bundled_data import data_file
from autosync.documents import COUNT, STRICT, from_json, to_json
from autosync.errors import InvalidInput, NotFound
from autosync.simulator.learned.features.domain_descriptor import DESCRIPTOR
from autosync.simulator.learned.features.feature_names import FEATURE_VERSION, SUMMARY_COLUMNS
from autosync.simulator.learned.gaussian_process import (
    HIDDEN,
    LIMITS,
    Kernel,
    SourceTrials,
    start_kernel,
)
from autosync.simulator.learned.learned_simulator import LearnedSimulator

Arrays = dict[str, NDArray[Any]]

FOLDER, FILE = "simulators", "default.safetensors"
KERNEL, ENCODER = "kernel.", "encoder."
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
    trials: Annotated[int, COUNT]
    descriptor: Annotated[
        tuple[float, ...], Field(min_length=len(DESCRIPTOR), max_length=len(DESCRIPTOR))
    ]
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


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
    accuracy: Annotated[float, Field(ge=0, le=1)] | None
    unseen: str
    encoder: Literal["none", "gat"] = "none"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    feature_version: int = FEATURE_VERSION
    versions: tuple[tuple[str, str], ...] = ()
    dataset: str = ""
    parents: tuple[str, ...] = ()
    version: Literal[2] = 2
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    @property
    def kind(self) -> str:
        """In words."""
        return "gaussian process" + ("" if self.encoder == "none" else f" on {self.encoder}")

    @property
    def trials(self) -> int:
        return sum(source.trials for source in self.sources)


def library_versions() -> tuple[tuple[str, str], ...]:
    """What a simulator is trained by, for its card."""
    libraries = ((name, version(name)) for name in ("torch", "numpy"))
    return (*libraries, ("python", platform.python_version()))


def parse_card(text: str | bytes, source: str = "card") -> CheckpointCard:
    """Raises InvalidInput: it is no card, or of an earlier version of AutoSync."""
    return from_json(CheckpointCard, text, source, remedy=RETRAIN)


def weights_of(simulator: LearnedSimulator) -> bytes:
    """What a simulator has learned, in the safetensors format: the same bytes every time."""
    arrays = _arrays(simulator)
    return bytes(save({name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)}))


def save_checkpoint(path: Path, simulator: LearnedSimulator, card: CheckpointCard) -> None:
    """Write PATH.safetensors and PATH.json; both are drafts until both are written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        replaced_atomically(path.with_suffix(".json")) as text,
        replaced_atomically(path.with_suffix(".safetensors")) as weights,
    ):
        weights.write_bytes(weights_of(simulator))
        text.write_bytes(f"{to_json(card)}\n".encode())


def read_card(path: Path) -> CheckpointCard:
    """The card of a checkpoint, whatever its feature version.

    Raises:
        NotFound: no card there. InvalidInput: it is none.
    """
    file = path.with_suffix(".json")
    return parse_card(_read(file), file.name)


def load_checkpoint(path: Path) -> tuple[LearnedSimulator, CheckpointCard]:
    """The simulator as it was saved.

    Raises:
        NotFound: no checkpoint there. InvalidInput: as `restore`.
    """
    card = read_card(path)
    return restore(card, _read(path.with_suffix(".safetensors")), path.name), card


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
    blank = _blank(card)
    arrays = _checked(weights, _arrays(blank), len(card.sources), name)
    kernel: dict[str, Any] = {field.name: arrays[KERNEL + field.name] for field in fields(Kernel)}
    for field in fields(Kernel):
        if field.type is float:
            kernel[field.name] = float(kernel[field.name][0])
    sources = []
    for number, source in enumerate(card.sources):
        rows = np.flatnonzero(arrays["source"] == number)
        columns = (arrays[part][rows] for part in OF_TRIALS[1:])
        sources.append(SourceTrials(np.array(source.descriptor), *columns))
    if (encoder := blank.encoder) is not None:
        import torch

        state = {key: torch.from_numpy(arrays[ENCODER + key]) for key in encoder.state_dict()}
        encoder.load_state_dict(state)
    return LearnedSimulator(Kernel(**kernel), sources, encoder)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise NotFound(
            f"there is no checkpoint {str(file)!r}: {error.strerror}.",
            thing="checkpoint",
            value=str(file),
            remedy="Give the path of a .safetensors file with its .json beside it.",
        ) from None


def _arrays(simulator: LearnedSimulator) -> Arrays:
    kernel, sources, encoder = simulator.kernel, simulator.sources, simulator.encoder
    arrays: Arrays = {
        KERNEL + field.name: np.atleast_1d(getattr(kernel, field.name)) for field in fields(Kernel)
    }
    if encoder is not None:
        arrays |= {ENCODER + name: each.numpy() for name, each in encoder.state_dict().items()}
    counts = np.array([len(each) for each in sources], dtype=np.int64)
    arrays["source"] = np.repeat(np.arange(len(sources)), counts)
    empty = np.zeros((0, len(kernel.center)), dtype=np.float32)
    arrays["columns"] = np.concatenate([empty, *(each.columns for each in sources)])
    for name in ("residual", "slowness"):
        arrays[name] = np.concatenate([np.zeros(0), *(getattr(each, name) for each in sources)])
    return arrays


def _blank(card: CheckpointCard) -> LearnedSimulator:
    """Of a card's form, without a trial: every array has its type, and its shape but for that."""
    columns, encoder = len(SUMMARY_COLUMNS), None
    if card.encoder != "none":
        from autosync.simulator.learned.encoders import Encoder, gat_network  # loads torch

        encoder, columns = Encoder(gat_network(card.seed)), columns + HIDDEN
    return LearnedSimulator(start_kernel(np.zeros(columns), np.ones(columns)), (), encoder)


def _checked(weights: bytes, form: Arrays, sources: int, name: str) -> Arrays:
    """The arrays of a file. Raises InvalidInput where they have not the names, shapes and types of
    `form`, any number of trials apart, or hold what no simulator of so many domains holds."""

    def refuse(why: str) -> InvalidInput:
        return InvalidInput(
            f"checkpoint {name}: {why}.",
            thing="checkpoint",
            value=name,
            remedy="Copy its .safetensors and its .json again, both as they were written.",
        )

    try:
        arrays: Arrays = load(weights)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise refuse(f"holds no tensors in the safetensors format: {error}") from None
    if missing := form.keys() - arrays.keys():
        raise refuse(f"tensor {min(missing)!r} is missing")
    if odd := arrays.keys() - form.keys():
        raise refuse(f"tensor {min(odd)!r} belongs to no simulator")
    for part, right in form.items():
        array, is_scale = arrays[part], part in (KERNEL + "scale", ENCODER + "scale")
        rows = (arrays["residual"].size,) if part in OF_TRIALS else right.shape[:1]
        least, most = LIMITS.get(part.removeprefix(KERNEL), (-np.inf, np.inf))
        if (array.shape, array.dtype) != (shape := (*rows, *right.shape[1:]), right.dtype):
            why = f"has shape {array.shape} and type {array.dtype}, not {shape} and {right.dtype}"
        elif is_scale and not (array > 0).all():  # infinite: the column never varied
            why = "holds values that are not positive"
        elif not is_scale and not np.isfinite(array).all():
            why = "holds values that are not finite"
        elif not ((array >= least) & (array <= most)).all():
            why = f"holds values that are not {least:g} to {most:g}"
        elif part == "source" and not ((array >= 0) & (array < sources)).all():
            why = "names a domain that is not there"
        else:
            continue
        raise refuse(f"tensor {part!r} {why}")
    return arrays
