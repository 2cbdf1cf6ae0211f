"""The space that a search draws from, and the choices a user pins."""

from collections import Counter
from dataclasses import dataclass
from typing import Annotated

from autosync.allowed import Allowed
from autosync.documents import UNLESS_TRUE, UNLESS_ZERO
from autosync.errors import InvalidInput
from autosync.strategy import VariableChoice
from autosync.units import MIB

MAX_SLICE_BYTES = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Space(Allowed):
    """What is allowed, how the sampler draws from it, and what is pinned (allowed or not).

    priority: messages may be ordered by their next use, by rule or explicitly.
    whole_below_bytes, max_parts, max_groups: AutoSync's published sampler keeps variables under
        100 KB whole, cuts into at most 40 parts and merges into at most 20 groups.
    slice_bytes: slice sizes to draw from; 0 does not slice.
    load_balance: owners are drawn in proportion to bandwidth (AutoSync's first constraint);
        otherwise uniformly, each shard by itself.
    adjacent_merge: a message holds shards that are neighbours in gradient-ready order and about as
        many bytes as another (the second constraint); otherwise each shard draws its message.
    shard_methods: where a strategy mixes methods, the shards of one variable may differ, too.
    sharded_parameters: torch's `fully_shard` may be proposed, under which the model's parameters
        are DTensors: the training script must do without their whole values.
    swapping: what fits the devices' memory in no other way may be proposed with activations,
        optimizer state and values swapped to host memory.
    idle_gathers: draw also when all-gathers start that run into the next forward pass. Designs may
        always start them while the link is idle; random draws only where asked, for the shipped
        simulator has not learned from such trials.
    pins: choices the search must keep, by variable. Pinned shards share a message only among
        themselves, as their group numbers say.

    Raises:
        InvalidInput: nothing could be drawn, or a number is out of range; names the field.
    """

    priority: bool = True
    whole_below_bytes: int = 100_000
    max_parts: int = 40
    max_groups: int = 20
    slice_bytes: tuple[int, ...] = (0, MIB, 4 * MIB, 16 * MIB)
    load_balance: Annotated[bool, UNLESS_TRUE] = True
    adjacent_merge: Annotated[bool, UNLESS_TRUE] = True
    shard_methods: Annotated[bool, UNLESS_ZERO] = False
    sharded_parameters: Annotated[bool, UNLESS_TRUE] = True
    swapping: Annotated[bool, UNLESS_TRUE] = True
    idle_gathers: Annotated[bool, UNLESS_ZERO] = False
    pins: tuple[VariableChoice, ...] = ()

    def __post_init__(self) -> None:
        Allowed.__post_init__(self)  # a slotted class is made anew, so super() does not find it
        for name, least in (("whole_below_bytes", 0), ("max_parts", 1), ("max_groups", 1)):
            value = getattr(self, name)
            if value < least:
                raise _refused(name, value, f"is {value}", f"Give {least} or more.")
        if not self.slice_bytes:
            raise _refused("slice_bytes", (), "is empty", "Give [0] to leave messages whole.")
        for size in self.slice_bytes:
            if not 0 <= size <= MAX_SLICE_BYTES:
                why, remedy = f"has a slice of {size} bytes", "Give sizes above 0, or 0: no slices."
                raise _refused("slice_bytes", size, why, remedy)
        for variable, count in Counter(pin.variable for pin in self.pins).items():
            if count > 1:
                raise _refused("pins", variable, f"has {count} for {variable!r}", "Give one.")


def _refused(field: str, value: object, why: str, remedy: str) -> InvalidInput:
    message = f"space: {field} {why}."
    return InvalidInput(message, thing=f"space.{field}", value=value, remedy=remedy)
