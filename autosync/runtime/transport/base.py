"""The contract of a backend: operations of fixed size, prepared once when a plan is attached and
started in every iteration, as MPI's persistent collectives are; and the error of one that fails."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from autosync.codes import Op
from autosync.errors import AutosyncError
from autosync.plan import Plan


class Work(Protocol):
    """A started operation."""

    def wait(self) -> Any:
        """Block until the result is in place; on a GPU, until what puts it there has been asked of
        the current stream."""


Wait = Callable[[Any], None]
"""Waits for an operation under way."""

Start = Callable[[], Work]
"""Starts a prepared operation, once an iteration."""


class Done:
    """Work that has ended, or that the current stream itself waits for."""

    def wait(self) -> None: ...


DONE = Done()


class All:
    """Several works as one."""

    __slots__ = ("_works",)

    def __init__(self, works: list[Any]):
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


class Then:
    """Work of a backend, and behind it a function of this rank's own."""

    __slots__ = ("_finish", "_work")

    def __init__(self, finish: Callable[[], object], work: Work):
        self._finish = finish
        self._work = work

    def wait(self) -> None:
        self._work.wait()
        self._finish()


def chunk_of(place: int, members: int, size: int) -> slice:
    """The even part of `size` elements, padded, that member `place` of `members` holds."""
    chunk = -(-size // members)
    return slice(place * chunk, (place + 1) * chunk)


def other_places(place: int, members: int) -> list[int]:
    """Every other place of a team, the next one first."""
    return [(place + step) % members for step in range(1, members)]


@dataclass(frozen=True, slots=True)
class Operation:
    """A message of fixed size, as this rank takes part in it.

    place, root: in the team, which has `members`. size: elements without padding. tag: of the
    message, for backends that tell messages apart. share: what a reduction multiplies this rank's
    values by; None where they are multiplied already. equal_shares: every member's is the same.
    """

    kind: Op
    place: int
    root: int
    members: int
    size: int
    tag: int
    share: float | None = None
    equal_shares: bool = False

    @property
    def padded(self) -> int:
        """Elements that the team divides evenly."""
        return -(-self.size // self.members) * self.members

    def chunk(self, member: int) -> slice:
        return chunk_of(member, self.members, self.size)

    def others(self) -> list[int]:
        return other_places(self.place, self.members)

    def sent(self) -> list[slice]:
        """What the operation reads of this rank's tensor."""
        match self.kind:
            case Op.ALL_GATHER:
                return [self.chunk(self.place)]
            case Op.BROADCAST | Op.PULL if self.place != self.root:
                return []
            case Op.REDUCE_SCATTER:
                return [slice(0, self.padded)]
        return [slice(0, self.size)]

    def received(self) -> list[slice]:
        """Where the operation leaves a result on this rank."""
        at_root = self.place == self.root
        match self.kind:
            case Op.ALL_GATHER:
                return [self.chunk(member) for member in self.others()]
            case Op.REDUCE_SCATTER:
                return [self.chunk(self.place)]
            case Op.BROADCAST | Op.PULL if at_root:
                return []
            case Op.REDUCE | Op.PUSH if not at_root:
                return []
        return [slice(0, self.size)]


def operation_of(
    plan: Plan, index: int, rank: int, size: int, share: float | None = None
) -> Operation:
    """Message `index` as a rank of its team takes part in it. size: elements without padding."""
    message = plan.messages[index]
    team = plan.team_of(message, rank)
    root = team.index(message.root) if message.root in team else 0
    alike = len(set(plan.shares)) == 1
    return Operation(
        message.operation, team.index(rank), root, len(team), size, index, share, alike
    )


class Transport(Protocol):
    """Moves tensors among a team of ranks. What a backend implements."""

    def adds_up(self, kind: Op) -> bool:
        """Whether this side, not the backend, forms the sums of an operation."""

    def prepare(self, operation: Operation, wire: Tensor, sums: Tensor) -> Start:
        """What starts the operation.

        wire: the flat tensor that travels, with padding. The result is there too, or in `sums`
        where this side adds up; the two may be one tensor.
        """


class SynchronizationFailed(AutosyncError):
    """A message of the plan did not arrive: a peer died, hung past the timeout or differs."""


GLOO_DID_NOT_JOIN = "connectFullMesh"
"""In the error of a gloo group whose members do not reach each other."""
GLOO_REMEDY = (
    "Ranks meet by gloo, those of an NCCL job too. It binds to the address of the host's own name: "
    "where that is a loopback address (Debian's 127.0.1.1), or not reached from the other hosts, "
    "set GLOO_SOCKET_IFNAME to the interface between the hosts. Else: "
)


def lost_peer(what: str, thing: str, value: object, state_is_split: bool) -> SynchronizationFailed:
    """state_is_split: every rank held only its own part of the optimizer's state."""
    remedy = GLOO_REMEDY if GLOO_DID_NOT_JOIN in what else ""
    remedy += "A peer died, ended early (all ranks need the same number of batches), hung past the "
    remedy += "timeout, or runs another plan: see its log. "
    if state_is_split:
        remedy += "Its part of the optimizer's state is lost with it. "
    remedy += "Start all ranks again from the last checkpoint."
    return SynchronizationFailed(what, thing=thing, value=value, remedy=remedy)


def gradients_missing() -> SynchronizationFailed:
    """Of a rank whose script has caught an error of its backward pass."""
    return SynchronizationFailed(
        "the last backward pass ended with an error, so this rank's gradients are missing.",
        thing="backward",
        remedy="Start all ranks again from the last checkpoint.",
    )
