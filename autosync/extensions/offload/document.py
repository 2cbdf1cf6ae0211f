"""What a strategy says of host memory: what of a device may wait there, within a budget."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import ConfigDict

from autosync.documents import LARGEST_COUNT, STRICT, UNLESS_ZERO
from autosync.errors import InvalidStrategy
from autosync.extensions.document import ExtensionDocument

RESERVE = 0.1
"""Of a device's memory, left to what no prediction and no schedule knows: inputs that the script
holds, workspaces of kernels, what the allocator rounds up, a GPU's context. A swapped step fills
its budget, so it needs this room more than one that happens to fit. Predicted peaks were up to 2 %
too small on a CPU (docs/simulator.md), and 3.4 to 3.6 % on a GPU (docs/gpus.md)."""

SWAPPED = "iterations, which wait for swapped activations (a plain one has no room),"
WITH_STATE = (
    "iterations, which wait for swapped activations and optimizer state (for want of room),"
)
"""How the iterations of a recorded job ran, in words."""


@dataclass(frozen=True, slots=True)
class Offload(ExtensionDocument):
    """What a rank's device has no room for waits in host memory: activations for their backward.

    budget_bytes: what a training step may take of a device at most: values, gradients, optimizer
        state, buffers and activations.
    optimizer_state: whether the state of optimizers waits there for their updates, too.
    values: whether those of parameters did, in strategies of earlier versions. They are read, and
        refused where they are to run (`verification.check_values_stay`).
    """

    budget_bytes: int
    optimizer_state: Annotated[bool, UNLESS_ZERO] = False
    values: Annotated[bool, UNLESS_ZERO] = False
    key: ClassVar[str] = "swap"
    slows_compute: ClassVar[bool] = True
    unsteady_passes: ClassVar[int] = 2  # recorded without the optimizer's state, and with it
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if not 0 < self.budget_bytes <= LARGEST_COUNT:
            raise InvalidStrategy(
                f"swap.budget_bytes is {self.budget_bytes}.",
                thing="swap.budget_bytes",
                value=self.budget_bytes,
                remedy="State the bytes of device memory that a training step may take.",
            )

    @classmethod
    def to_save_memory(cls, memory_bytes: float) -> "list[tuple[str, Offload]]":
        return [*zip((SWAPPED, WITH_STATE), forms_within(budget_within(memory_bytes)), strict=True)]


def budget_within(memory_bytes: float) -> int:
    """What a swapped step may take of a device of so much memory."""
    return int(memory_bytes * (1 - RESERVE))


def forms_within(budget_bytes: int) -> tuple[Offload, ...]:
    """All that may be swapped within a budget, activations alone first."""
    return Offload(budget_bytes), Offload(budget_bytes, optimizer_state=True)
