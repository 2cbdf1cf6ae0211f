"""The synchronizers, schedules and shares that a search, or the limit, may use."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

from pydantic import ConfigDict

from autosync.documents import STRICT, UNLESS_SYNCHRONOUS, UNLESS_ZERO
from autosync.errors import InvalidInput
from autosync.extensions.staleness.document import MAX_STALENESS
from autosync.strategy import Encoding


@dataclass(frozen=True, slots=True)
class Allowed:
    """The defaults are everything exact and synchronous that the runtime runs.

    factors: sufficient factors of linear layers. Sparse gradients may always be gathered.
    overlap_forward: synchronization may run into the next forward pass.
    uneven_shares: replicas may take unequal parts of the batch; off by default, since the training
        script must deal its data accordingly.
    encodings: how dense messages may be packed; lossless only, unless the user allows more.
    staleness: iterations by which updates may be late; 0 only, unless the user allows more.
    placement: modules may live on ranks of their own; off by default, since all ranks must then
        call the model together (docs/placement.md).
    """

    parameter_server: bool = True
    all_reduce: bool = True
    reduce_scatter: bool = True
    hierarchical: bool = True
    factors: bool = True
    overlap_forward: bool = True
    uneven_shares: bool = False
    encodings: tuple[Encoding, ...] = (Encoding(),)
    staleness: Annotated[tuple[int, ...], UNLESS_SYNCHRONOUS] = (0,)
    placement: Annotated[bool, UNLESS_ZERO] = False
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if not (self.parameter_server or self.all_reduce or self.reduce_scatter):
            raise InvalidInput(
                "parameter_server, all_reduce and reduce_scatter are all off: nothing could "
                "synchronize a dense gradient.",
                thing="parameter_server, all_reduce, reduce_scatter",
                value=False,
                remedy="Allow one of them.",
            )
        if not self.encodings:
            raise InvalidInput(
                "encodings is empty: no message could be packed.",
                thing="encodings",
                value=self.encodings,
                remedy='Leave it out, or give [{"name": "none"}].',
            )
        wrong = [each for each in self.staleness if not 0 <= each <= MAX_STALENESS]
        if wrong or 0 not in self.staleness:
            why = f"has {wrong[0]}" if wrong else "lacks 0, which DDP and others are measured with"
            raise InvalidInput(
                f"staleness {why}.",
                thing="staleness",
                value=wrong[0] if wrong else self.staleness,
                remedy=f"Give 0 and what may be tried beside it, up to {MAX_STALENESS}.",
            )

    @property
    def may_divide_model(self) -> bool:
        """Whether ranks may take any part of the compute, and hold any part of the variables."""
        return self.placement

    def undivided(self) -> Self:
        """The same, except that every rank holds the whole model."""
        return replace(self, placement=False)

    @property
    def may_lag(self) -> bool:
        """Whether strategies of a staleness above 0 are allowed."""
        return any(self.staleness)
