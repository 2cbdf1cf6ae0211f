"""A rank's role in a message of fixed size: its place in its team, what it sends and receives."""

from dataclasses import dataclass

from autosync.codes import Op


def chunk_of(place: int, members: int, size: int) -> slice:
    """The even part of `size` elements, padded, that member `place` of `members` holds."""
    chunk = -(-size // members)
    return slice(place * chunk, (place + 1) * chunk)


@dataclass(frozen=True, slots=True)
class TeamRole:
    """place, root: in the team, which has `members`. size: elements without padding. tag: of the
    message, for backends that tell messages apart."""

    operation: Op
    place: int
    root: int
    members: int
    size: int
    tag: int

    @property
    def padded(self) -> int:
        """Elements that the team divides evenly."""
        return -(-self.size // self.members) * self.members

    def chunk(self, member: int) -> slice:
        return chunk_of(member, self.members, self.size)

    def others(self) -> list[int]:
        """Every other member, the next one first."""
        return [(self.place + step) % self.members for step in range(1, self.members)]

    def sent(self) -> list[slice]:
        """What the operation reads of this rank's tensor."""
        match self.operation:
            case Op.ALL_GATHER:
                return [self.chunk(self.place)]
            case Op.BROADCAST | Op.PULL:
                return [self._whole] if self.place == self.root else []
            case Op.REDUCE_SCATTER:
                return [slice(0, self.padded)]
        return [self._whole]

    def received(self) -> list[slice]:
        """Where the operation leaves a result on this rank."""
        match self.operation:
            case Op.ALL_GATHER:
                return [self.chunk(member) for member in self.others()]
            case Op.BROADCAST | Op.PULL:
                return [] if self.place == self.root else [self._whole]
            case Op.REDUCE | Op.PUSH:
                return [self._whole] if self.place == self.root else []
            case Op.REDUCE_SCATTER:
                return [self.chunk(self.place)]
        return [self._whole]

    @property
    def _whole(self) -> slice:
        return slice(0, self.size)
