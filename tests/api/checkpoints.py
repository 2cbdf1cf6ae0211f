"""Trained simulators as their two files."""

from pathlib import Path

from autosync.simulator.learned.checkpoint import SourceDomain, save_checkpoint
from autosync.simulator.learned.features.domain_descriptor import DESCRIPTOR
from autosync.simulator.learned.learned_simulators import LearnedSimulator
from autosync.simulator.learned.models.learned_model import LearnedModel

Files = tuple[bytes, bytes]
"""Card and tensors."""


def checkpoint(
    folder: Path, model: LearnedModel, descriptor: tuple[float, ...] = (0.5,) * len(DESCRIPTOR)
) -> Files:
    source = SourceDomain("a" * 32, "chain", "grid", 60, descriptor)
    path = folder / "made"
    save_checkpoint(path, LearnedSimulator(model), (source,), 0.9, "10 strategies")
    return path.with_suffix(".json").read_bytes(), path.with_suffix(".safetensors").read_bytes()
