"""What every document of an extension says of itself to the core."""

from typing import ClassVar, Protocol, Self, TypeVar

T = TypeVar("T")


class ExtensionDocument:
    """Base of the frozen dataclasses that a strategy carries, at most one of each extension.

    key: of its entry in the JSON of a strategy. divides_model: some ranks do not hold all
        parameters. needs_plan: torch's DDP in the place of a plan runs without it.
        unsteady_passes: iterations before its own steady state, which trials run as warm-up.
        slows_compute: forward and backward passes wait for it; a replay, which does not do it,
        waits as long as predicted.
    """

    __slots__ = ()
    key: ClassVar[str]
    divides_model: ClassVar[bool] = False
    needs_plan: ClassVar[bool] = False
    unsteady_passes: ClassVar[int] = 0
    slows_compute: ClassVar[bool] = False

    @property
    def iterations_in_flight(self) -> int:
        """How many iterations later the sums of one may be applied; above 0, replicas differ."""
        return 0

    @classmethod
    def to_save_memory(cls, memory_bytes: float) -> "list[tuple[str, Self]]":
        """Entries with which an iteration may fit into so many bytes of device memory, the fastest
        first, each with words for a report. Empty where the extension saves no memory."""
        return []


class HasExtensions(Protocol):
    """A strategy, or a plan."""

    def extension(self, kind: type[T]) -> T | None:
        """What it carries of an extension, by the type of its document; None where nothing."""
        ...
