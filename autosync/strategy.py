"""A strategy S: a complete, executable choice of how a domain's gradients are synchronized."""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, Discriminator, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from autosync.codes import MAX_POWERSGD_RANK
from autosync.documents import (
    LARGEST_COUNT,
    STRICT,
    UNLESS_FALSE,
    UNLESS_NEXT_FORWARD,
    UNLESS_NONE,
    content_hash,
)
from autosync.errors import InvalidStrategy
from autosync.extensions.document import ExtensionDocument
from autosync.extensions.registry import Entries, entry_of, flat_schema, in_order
from autosync.torch_engine import DdpArguments, FullyShard

EncodingName = Literal["none", "fp16", "bf16", "powersgd"]
Algorithm = Literal["ring", "tree", "hierarchical"]
OrderName = Literal["fifo", "priority", "explicit", "ddp"]
GatherTime = Literal["next_forward", "when_idle"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a message is packed. All but `none` are lossy and refused unless allowed.

    rank: of PowerSGD's factors (0 otherwise).
    """

    name: EncodingName = "none"
    rank: int = 0
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if self.name == "powersgd" and not 1 <= self.rank <= MAX_POWERSGD_RANK:
            why, remedy = f"PowerSGD has rank {self.rank}", f"Use 1 to {MAX_POWERSGD_RANK}."
        elif self.name != "powersgd" and self.rank:
            why, remedy = f"{self.name!r} has rank {self.rank}", "Only PowerSGD has a rank."
        else:
            return
        raise InvalidStrategy(
            f"encoding {why}.", thing="encoding.rank", value=self.rank, remedy=remedy
        )


EXACT = Encoding()


@dataclass(frozen=True, slots=True)
class ParameterServer:
    """Reduce to the owner, update there, send the new values to every replica.

    server: the owner (a rank; dedicated server hosts count after the ranks).
    group: shards of one owner with equal group travel in one message.
    hierarchical: replicas of a node reduce among themselves first.
    returns_gradients: the owner updates nothing and sends the average gradient back, which every
        replica applies (BytePS: Jiang et al. 2020). That need not wait for `step()`: it travels in
        backward, too, unless the schedule lets it run into the next forward pass and says when it
        leaves (`Schedule.gather`).
    """

    server: int
    group: int
    hierarchical: bool = False
    encoding: Encoding = EXACT
    returns_gradients: Annotated[bool, UNLESS_FALSE] = False
    kind: Literal["parameter_server"] = "parameter_server"
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Every replica gets the sum.

    device_order: ranks along an explicit ring; empty leaves the order to the backend.
    """

    group: int
    algorithm: Algorithm = "ring"
    device_order: tuple[int, ...] = ()
    encoding: Encoding = EXACT
    kind: Literal["all_reduce"] = "all_reduce"
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class ReduceScatter:
    """Reduce-scatter in backward, all-gather before the next use (DeAR).

    sharded_update: each replica updates its part and gathers values (ZeRO-1's form); otherwise
        the all-gather carries gradients and every replica updates everything.
    """

    group: int
    sharded_update: bool = False
    encoding: Encoding = EXACT
    kind: Literal["reduce_scatter"] = "reduce_scatter"
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class AllGather:
    """Every replica sends its touched rows to all (sparse gradients)."""

    group: int
    kind: Literal["all_gather"] = "all_gather"
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class Factors:
    """Every replica sends the sufficient factors of a linear layer's gradient (Poseidon)."""

    group: int
    kind: Literal["factors"] = "factors"
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


Synchronizer = Annotated[
    ParameterServer | AllReduce | ReduceScatter | AllGather | Factors, Discriminator("kind")
]


@dataclass(frozen=True, slots=True)
class Partition:
    """How a variable is cut into shards.

    axis: the dimension that is cut, or -1 to cut the flattened tensor.
    lengths: of each shard along the axis (elements when flat); they add up to the dimension.
    `whole`, `split` and `pieces` build the usual ones.
    """

    axis: int
    lengths: tuple[int, ...]
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if not self.lengths or any(length < 1 for length in self.lengths):
            raise InvalidStrategy(
                f"a partition along axis {self.axis} has shard lengths {self.lengths[:8]}: every "
                "shard must hold at least one.",
                thing="partition",
                value=self.lengths[:8],
            )


def whole(shape: tuple[int, ...]) -> Partition:
    return Partition(-1, (math.prod(shape),))


def split(shape: tuple[int, ...], axis: int, parts: int) -> Partition:
    """`parts` shards along `axis`; the first `dim mod parts` of them are one longer."""
    if not 0 <= axis < len(shape) or not 1 <= parts <= shape[axis]:
        raise InvalidStrategy(
            f"cannot cut shape {shape} into {parts} parts along axis {axis}.",
            thing="partition",
            value=(axis, parts),
        )
    base, extra = divmod(shape[axis], parts)
    if parts == 1:
        return whole(shape)
    return Partition(axis, tuple(base + (i < extra) for i in range(parts)))


def pieces(shape: tuple[int, ...], piece_elements: int) -> Partition:
    """Flat pieces of a fixed size, the last one shorter (BytePS, Poseidon's key-value pairs)."""
    count = math.prod(shape)
    full, rest = divmod(count, min(piece_elements, count))
    return Partition(-1, (min(piece_elements, count),) * full + ((rest,) if rest else ()))


@dataclass(frozen=True, slots=True)
class VariableChoice:
    """The choice s_i for one variable: its partition, and a synchronizer per shard."""

    variable: str
    partition: Partition
    shards: tuple[Synchronizer, ...]
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if len(self.shards) != len(self.partition.lengths):
            raise InvalidStrategy(
                f"variable {self.variable!r} is cut into {len(self.partition.lengths)} shards but "
                f"has {len(self.shards)} synchronizers.",
                thing=f"variable {self.variable}",
                value=len(self.shards),
                remedy="Give each shard one synchronizer.",
            )


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica: the rank (device) that holds it and its share of the global batch."""

    rank: int
    share: float
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class Schedule:
    """When messages are sent.

    order: `fifo` (as gradients become ready), `priority` (nearest next use first), `explicit`
        (`positions`), or `ddp` (torch's own DDP with its own buckets).
    slice_bytes: messages longer than this are cut, so that urgent ones can pass; 0 never cuts.
    overlap_forward: whether synchronization may run into the next forward pass.
    positions: for `explicit`, the place of every shard in the sending order, shard by shard in
        the order of the strategy; shards of one group travel with their first.
    gather: when the all-gathers of reduce-scatters, and gradients that owners return, leave that
        may run into the next forward pass: `next_forward`, in the order in which it uses them
        (DeAR), or `when_idle`, in backward, too: as soon as nothing else is on the wire, or as an
        owner has them, since its links carry them in the other direction.
    ddp: for `ddp`, what torch's DDP is given beside its bucket size; None where nothing.
    """

    order: OrderName = "fifo"
    slice_bytes: int = 0
    overlap_forward: bool = False
    positions: tuple[int, ...] = ()
    gather: Annotated[GatherTime, UNLESS_NEXT_FORWARD] = "next_forward"
    ddp: Annotated[DdpArguments | None, UNLESS_NONE] = None
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if not 0 <= self.slice_bytes <= LARGEST_COUNT:
            raise InvalidStrategy(
                f"schedule.slice_bytes is {self.slice_bytes}; it must be 0 to {LARGEST_COUNT}.",
                thing="schedule.slice_bytes",
                value=self.slice_bytes,
            )
        if (self.order == "explicit") != bool(self.positions):
            raise InvalidStrategy(
                f"schedule.positions has {len(self.positions)} entries under order {self.order!r}: "
                "they belong to the explicit order, one per shard.",
                thing="schedule.positions",
                value=len(self.positions),
            )
        if self.ddp is not None and self.order != "ddp":
            raise InvalidStrategy(
                f"schedule.ddp has arguments of torch's DDP under order {self.order!r}.",
                thing="schedule.ddp",
                value=self.order,
                remedy='Leave them out, or use order "ddp".',
            )


@dataclass(frozen=True, slots=True)
class Strategy:
    """S = one choice per variable (in the graph's order), the replicas and the schedule.

    name: for display; not part of its identity.
    engine: what runs in place of this runtime or torch's DDP. Its choices say what it sends: every
        variable whole, by a reduce-scatter with sharded update, in the group of its unit.
    extensions: what else it carries, at most one document of each extension; stored by their keys.
        In JSON each is a field of the strategy (`extensions.registry`).
    """

    choices: tuple[VariableChoice, ...]
    replicas: tuple[Replica, ...]
    schedule: Schedule = field(default_factory=Schedule)
    name: str = ""
    engine: Annotated[FullyShard | None, UNLESS_NONE] = None
    extensions: Entries = ()
    version: Literal[1] = 1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        object.__setattr__(self, "extensions", in_order(self.extensions))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return flat_schema(cls, handler)

    def extension(self, kind: type[T]) -> T | None:
        """Its document of an extension, by the document's type; None if it has none."""
        return entry_of(self.extensions, kind)

    def carrying(self, *documents: ExtensionDocument) -> "Strategy":
        """The same strategy with these documents in place of its own of the same extensions."""
        keys = {document.key for document in documents}
        others = (each for each in self.extensions if each.key not in keys)
        return replace(self, extensions=(*others, *documents))

    def without(self, kind: type[ExtensionDocument]) -> "Strategy":
        """The same strategy without this extension."""
        kept = tuple(each for each in self.extensions if each.key != kind.key)
        return replace(self, extensions=kept)

    def canonical(self) -> "Strategy":
        """The same strategy unnamed, its groups numbered in order of first appearance."""
        numbers: dict[int, int] = {}
        choices = tuple(
            replace(
                choice,
                shards=tuple(_in_group(shard, numbers) for shard in choice.shards),
            )
            for choice in self.choices
        )
        return replace(self, choices=choices, name="")

    @property
    def id(self) -> str:
        """Identity: equal for strategies that differ in name or group numbers only."""
        return content_hash(self.canonical())

    @property
    def run_by_torch(self) -> bool:
        """Whether torch's own DDP or engine runs it, and not a plan of messages."""
        return self.schedule.order == "ddp" or self.engine is not None

    @property
    def shards(self) -> int:
        return sum(len(choice.shards) for choice in self.choices)


def _in_group(shard: Synchronizer, numbers: dict[int, int]) -> Synchronizer:
    """The shard in the group that its own is numbered as, a new one as the next."""
    number = numbers.setdefault(shard.group, len(numbers))
    return shard if number == shard.group else replace(shard, group=number)


def even_replicas(world_size: int) -> tuple[Replica, ...]:
    return tuple(Replica(rank, 1.0 / world_size) for rank in range(world_size))
