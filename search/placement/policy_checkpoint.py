"""A trained policy on disk: safetensors beside a JSON card that says what it was trained on."""

import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict
from safetensors import SafetensorError
from safetensors.torch import load, save

from autosync.bundled_data import data_file
from autosync.documents import STRICT, from_json, to_json
from autosync.errors import InvalidInput
from autosync.search.placement.policy_network import PlacementPolicy, PolicySizes

FEATURE_VERSION = 1
"""Of what a policy sees; another one's weights mean something else."""

FOLDER, FILE = "policies", "placement.safetensors"


@dataclass(frozen=True, slots=True)
class PolicyCard:
    """graphs: that it was trained on. domains: of them. evaluations: strategies that were judged,
    at the most. gain: the geometric mean over its domains of how many times as fast as their bases
    the last pass made them."""

    graphs: tuple[str, ...]
    domains: int
    evaluations: int
    gain: float
    seed: int
    sizes: PolicySizes
    feature_version: int = FEATURE_VERSION
    versions: tuple[tuple[str, str], ...] = ()
    version: Literal[1] = 1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


def save_policy(path: Path, policy: PlacementPolicy, card: PolicyCard) -> None:
    """Write PATH.safetensors and PATH.json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.contiguous() for name, tensor in policy.state_dict().items()}
    path.with_suffix(".safetensors").write_bytes(save(weights))
    path.with_suffix(".json").write_text(to_json(card) + "\n")


def load_policy(path: Path) -> tuple[PlacementPolicy, PolicyCard]:
    """
    Raises:
        InvalidInput: no policy of this version is there; says what to do.
    """
    try:
        card = from_json(PolicyCard, path.with_suffix(".json").read_text(), source=path.name)
        weights = load(path.with_suffix(".safetensors").read_bytes())
    except (OSError, SafetensorError, ValueError) as error:
        raise _refused(path, f"cannot be read: {error}") from None
    if card.feature_version != FEATURE_VERSION:
        raise _refused(path, f"sees features of version {card.feature_version}")
    policy = PlacementPolicy(card.sizes)
    try:
        policy.load_state_dict(weights)
    except RuntimeError:
        raise _refused(path, f"has not the tensors of {asdict(card.sizes)}") from None
    return policy, card


def bundled_policy() -> PlacementPolicy:
    """The policy that comes with AutoSync."""
    return load_policy(data_file(FOLDER, FILE))[0]


def versions() -> tuple[tuple[str, str], ...]:
    """Of what a policy is trained with."""
    packages = ("torch", "torch-geometric", "numpy")
    return (*((name, version(name)) for name in packages), ("python", platform.python_version()))


def _refused(path: Path, why: str) -> InvalidInput:
    return InvalidInput(
        f"policy {path.name!r} {why}.",
        thing="policy",
        value=str(path),
        remedy="Train it again: scripts/train_placement_policy.py.",
    )
