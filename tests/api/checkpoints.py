"""Trained simulators as their two files."""

from pathlib import Path

from autosync.simulator.learned.checkpoint import Source, save_checkpoint
from autosync.simulator.learned.descriptor import DESCRIPTOR
from autosync.simulator.learned.learned_models import Model
from autosync.simulator.learned.learned_simulators import LearnedSimulator

Files = tuple[bytes, bytes]
"""Card and tensors."""


def checkpoint(
    folder: Path, model: Model, descriptor: tuple[float, ...] = (0.5,) * len(DESCRIPTOR)
) -> Files:
    source = Source("a" * 32, "chain", "grid", 60, descriptor)
    path = folder / "made"
    save_checkpoint(path, LearnedSimulator(model), (source,), 0.9, "10 strategies")
    return path.with_suffix(".json").read_bytes(), path.with_suffix(".safetensors").read_bytes()
