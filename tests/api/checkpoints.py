"""Trained simulators as their two files."""

from pathlib import Path

import numpy as np

from autosync.simulator.learned.checkpoint import CheckpointCard, SourceDomain, save_checkpoint
from autosync.simulator.learned.features.domain_descriptor import DESCRIPTOR
from autosync.simulator.learned.features.feature_names import SUMMARY_COLUMNS
from autosync.simulator.learned.gaussian_process import SourceTrials, start_kernel
from autosync.simulator.learned.learned_simulator import LearnedSimulator

Files = tuple[bytes, bytes]
"""Card and tensors."""
DESCRIBED = np.full(len(DESCRIPTOR), 0.5)


def opinionated(residual: float = 0.1) -> LearnedSimulator:
    """One that knows a single invented trial, so that its predictions are nobody else's."""
    columns = np.zeros((1, len(SUMMARY_COLUMNS)), dtype=np.float32)
    trial = SourceTrials(DESCRIBED, columns, np.array([residual]), np.ones(1))
    nothing = np.zeros(len(SUMMARY_COLUMNS))
    return LearnedSimulator(start_kernel(nothing, nothing + 1.0), [trial])


def checkpoint(folder: Path, simulator: LearnedSimulator) -> Files:
    sources = tuple(
        SourceDomain("a" * 32, "chain", "grid", 60, tuple(each.descriptor.tolist()))
        for each in simulator.sources
    ) or (SourceDomain("a" * 32, "chain", "grid", 60, (0.5,) * len(DESCRIPTOR)),)
    path = folder / "made"
    save_checkpoint(path, simulator, CheckpointCard(sources, 0.9, "10 strategies"))
    return path.with_suffix(".json").read_bytes(), path.with_suffix(".safetensors").read_bytes()
