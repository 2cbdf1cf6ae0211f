"""The space that a search draws from, and the choices a user pins."""

from collections import Counter
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from autosync.allowed import Allowed
from autosync.documents import LARGEST_COUNT, UNLESS_EMPTY, UNLESS_TRUE, UNLESS_ZERO
from autosync.errors import InvalidInput
from autosync.strategy import EXACT, VariableChoice
from autosync.units import MIB

SpaceName = Literal["fsdp2", "buckets"]
"""Spaces that have a name. `fsdp2`: torch's `fully_shard` alone, beside DDP. `buckets`: torch's DDP
alone, by the sizes of its buckets."""

SWITCHES = {each.name: each.default for each in fields(Allowed) if isinstance(each.default, bool)}
NO_CHOICE = (
    *(name for name in SWITCHES if name != "all_reduce"),
    "priority",
    "sharded_parameters",
    "swapping",
    "nccl_knobs",
    "compiled_regions",
)
"""Fields that have no effect with torch's DDP alone."""


@dataclass(frozen=True, slots=True)
class Space(Allowed):
    """The allowed choices, how the sampler draws from them, and pinned choices (allowed or not).

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
    swapping: strategies that do not fit the devices' memory may be proposed with activations and
        optimizer state swapped to host memory.
    idle_gathers: draw also when all-gathers start that run into the next forward pass. Designs may
        always start them while the link is idle; random draws only where asked, for the shipped
        simulator has not learned from such trials.
    nccl_knobs: knobs of NCCL may be tried on the fastest strategies. All but CTAs of plans start
        the ranks anew, which a running job cannot.
    compiled_regions: regions of repeated blocks may be compiled on the fastest strategies. Only
        trials that train the model show what the compiler gains, as those of a running job do.
    pins: choices the search must keep, by variable. Pinned shards share a message only among
        themselves, as their group numbers say.
    only: the name of a space, whose strategies alone are tried beside DDP (`SPACES`), without
        swapping; empty where the fields above say what is.

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
    nccl_knobs: Annotated[bool, UNLESS_ZERO] = False
    compiled_regions: Annotated[bool, UNLESS_ZERO] = False
    pins: tuple[VariableChoice, ...] = ()
    only: Annotated[SpaceName | Literal[""], UNLESS_EMPTY] = ""

    def __post_init__(self) -> None:
        Allowed.__post_init__(self)  # a slotted class is made anew, so super() does not find it
        for name, least in (("whole_below_bytes", 0), ("max_parts", 1), ("max_groups", 1)):
            value = getattr(self, name)
            if value < least:
                raise _refused(name, value, f"is {value}", f"Give {least} or more.")
        if not self.slice_bytes:
            raise _refused("slice_bytes", (), "is empty", "Give [0] to leave messages whole.")
        for size in self.slice_bytes:
            if not 0 <= size <= LARGEST_COUNT:
                why, remedy = f"has a slice of {size} bytes", "Give sizes above 0, or 0: no slices."
                raise _refused("slice_bytes", size, why, remedy)
        for variable, count in Counter(pin.variable for pin in self.pins).items():
            if count > 1:
                raise _refused("pins", variable, f"has {count} for {variable!r}", "Give one.")
        if self.only == "buckets":
            wrong = [name for name in ("pins", *NO_CHOICE) if getattr(self, name)]
            if wrong:
                why = f"is {self.only!r}, and {wrong[0]} is {getattr(self, wrong[0])!r}"
                remedy = 'Give the name alone, "buckets"; it leaves no choice of that.'
                raise _refused("only", self.only, why, remedy)
        if self.only == "fsdp2":
            object.__setattr__(self, "swapping", False)
            others = [name for name, usual in SWITCHES.items() if not usual]
            others += ["pins", "may_lag", "idle_gathers"]
            wrong = [name for name in others if getattr(self, name)]
            wrong += [] if self.sharded_parameters else ["sharded_parameters"]
            if wrong:
                why = f"is {self.only!r}, and {wrong[0]} is {getattr(self, wrong[0])!r}"
                remedy = 'Give the name alone, "fsdp2"; it leaves no choice of that.'
                raise _refused("only", self.only, why, remedy)

    @property
    def may_lose(self) -> bool:
        """Whether messages may lose information: by an allowed encoding, or by that of a pin."""
        pinned = [getattr(shard, "encoding", EXACT) for pin in self.pins for shard in pin.shards]
        return any(each != EXACT for each in (*self.encodings, *pinned))


def _refused(field: str, value: object, why: str, remedy: str) -> InvalidInput:
    message = f"space: {field} {why}."
    return InvalidInput(message, thing=f"space.{field}", value=value, remedy=remedy)


def space_named(name: str) -> Space:
    """Raises InvalidInput where no space has that name."""
    for known, space in SPACES.items():
        if name == known:
            return space
    raise InvalidInput(
        f"no space is named {name!r}.",
        thing="space",
        value=name,
        remedy=f"Give one of {', '.join(SPACES)}, or a Space.",
    )


def check_in_running_job(space: Space) -> None:
    """Raises InvalidInput where a space allows what a running job cannot try: its ranks run the
    script's own steps."""
    if space.uneven_shares:
        why = "is true, and each rank of a running job takes batches of its own size in every trial"
        remedy = "Leave it out, or tune in the service, whose replays compute each rank's share."
        raise _refused("uneven_shares", True, why, remedy)
    if space.may_lag:
        why = f"is {list(space.staleness)}, and trials in a running job are synchronous"
        remedy = "Leave it out, or tune in the service, whose replays run late updates."
        raise _refused("staleness", space.staleness, why, remedy)


SPACES: dict[SpaceName, Space] = {
    "fsdp2": Space(only="fsdp2"),
    "buckets": Space(**dict.fromkeys(NO_CHOICE, False), only="buckets"),  # type: ignore[arg-type]  # switches
}
SPACES_IN_WORDS: dict[SpaceName, str] = {
    "fsdp2": "torch's fully_shard, by its units, resharding, prefetching and mesh",
    "buckets": "DDP alone, by the sizes of its buckets",
}
"""What stands beside DDP, as help, forms and documents of the API say it."""
