"""Imported once by the process that ranks are forked from: torch, pytest, what the tests share and
what the runtime loads at its first use. Otherwise each rank would spend half a second on it."""

import pytest
from torch.distributed import checkpoint

from autosync.runtime import distributed, training_state
from tests.autosync.runtime import cases, distributing, drawn, rows

__all__ = ["checkpoint", "distributed", "drawn", "pytest", "rows", "training_state"]

distributing.bundle_of(cases.Case(), cases.make_model("mlp"), 2)
