"""Swapping as a choice of strategies."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from autosync.documents import LARGEST_COUNT, STRICT
from autosync.errors import InvalidStrategy


@dataclass(frozen=True, slots=True)
class Swap:
    """Activations that a rank's device has no room for wait in host memory for their backward.

    budget_bytes: what a training step may take of a device at most: values, gradients, optimizer
        state, buffers and activations.
    """

    budget_bytes: int
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if not 0 < self.budget_bytes <= LARGEST_COUNT:
            raise InvalidStrategy(
                f"swap.budget_bytes is {self.budget_bytes}.",
                thing="swap.budget_bytes",
                value=self.budget_bytes,
                remedy="State the bytes of device memory that a training step may take.",
            )
