"""Plan: one strategy's messages as a document. It travels in the bundle; the runtime executes
it, the dashboard draws it."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from autosync.codes import Channel, Op, Order, Update
from autosync.documents import STRICT, UNLESS_NONE, content_hash
from autosync.domain import Domain
from autosync.extensions.registry import Entries, entry_of, flat_schema, in_order, of_plan
from autosync.plan.plan_table import MESSAGE_COLUMNS, PlanTable
from autosync.population import Population
from autosync.torch_engine import DdpArguments, FullyShard

T = TypeVar("T")

EngineName = Literal["autosync", "ddp", "fully_shard"]
UNLESS_FOR_BACKWARD = Field(exclude_if=lambda value: value == -1)
"""This field was added later: plans without such gathers keep their text and identity."""


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """A part of a variable: `length` along `axis` from `offset` (elements when axis is -1)."""

    variable: int
    axis: int
    offset: int
    length: int
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements start:stop of shard `shard`, in the row-major order of the shard's own shape."""

    shard: int
    start: int
    stop: int
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class Message:
    """One row of a PlanTable; see there. `bucket` and `teams` index the plan's own tables."""

    operation: Op
    channel: Channel
    root: int
    teams: int
    encoding: int
    carries_values: bool
    wire_bytes: int
    ready: int
    after: int
    gate: int
    update: Update
    bucket: int
    before: Annotated[int, UNLESS_FOR_BACKWARD] = -1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class Plan:
    """The messages of one iteration, in issue order.

    engine: `autosync`, `ddp` (torch's own DDP with buckets of `bucket_bytes`), or `fully_shard`
        (torch's FSDP2, as `sharding` says; its messages are what it is expected to send).
    ddp: what torch's DDP is given beside `bucket_bytes`; None where nothing.
    shares: each rank's share of the global batch.
    extensions: those of the strategy's that its messages depend on, or how they are executed. In
        JSON each is a field of the plan (`extensions.registry`).
    """

    engine: EngineName
    shares: tuple[float, ...]
    overlap_forward: bool
    bucket_bytes: int
    teams: tuple[tuple[tuple[int, ...], ...], ...]
    shards: tuple[ShardSpec, ...]
    buckets: tuple[tuple[Piece, ...], ...]
    messages: tuple[Message, ...]
    sharding: Annotated[FullyShard | None, UNLESS_NONE] = None
    ddp: Annotated[DdpArguments | None, UNLESS_NONE] = None
    extensions: Entries = ()
    version: Literal[2] = 2
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        object.__setattr__(self, "extensions", in_order(self.extensions))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return flat_schema(cls, handler, of_plans=True)

    def extension(self, kind: type[T]) -> T | None:
        """Its document of an extension, by the document's type; None if it has none."""
        return entry_of(self.extensions, kind)

    @property
    def id(self) -> str:
        return content_hash(self)

    @property
    def world_size(self) -> int:
        return len(self.shares)

    def team_of(self, message: Message, rank: int) -> tuple[int, ...]:
        """The ranks with which a rank performs a message; empty if it takes no part."""
        return next((team for team in self.teams[message.teams] if rank in team), ())


def upgraded(data: dict[str, Any]) -> dict[str, Any]:
    """A plan document of version 1 as one of version 2: buckets were called contents, and what
    carries values was left to the reader."""
    values: list[bool] = []
    messages = []
    for message in data["messages"]:
        before = data["messages"][message["after"]] if message["after"] >= 0 else None
        follows = before is not None and Update(before["update"]).leaves_values
        values.append(follows or (before is not None and values[message["after"]]))
        rest = {key: value for key, value in message.items() if key != "content"}
        messages.append(rest | {"bucket": message["content"], "carries_values": values[-1]})
    rest = {key: value for key, value in data.items() if key != "contents"}
    return rest | {"buckets": data["contents"], "messages": messages, "version": 2}


def plan_of(plans: PlanTable, population: Population, index: int, domain: Domain) -> Plan:
    """The plan of strategy `index`."""
    sharding = population.engines[population.engine[index]]
    layout = population.layouts[population.layout[index]]
    shares = [0.0] * domain.world_size
    for replica in layout:
        shares[replica.rank] = replica.share
    start, stop = int(plans.first[index]), int(plans.first[index + 1])
    rows = range(start, stop)
    buckets = sorted({int(plans.bucket[row]) for row in rows})
    place = {bucket: i for i, bucket in enumerate(buckets)}
    used = sorted({int(plans.ranks[row]) for row in rows})
    team = {ranks: i for i, ranks in enumerate(used)}
    return Plan(
        engine=_engine_name(population, index),
        shares=tuple(shares),
        overlap_forward=bool(population.overlap[index]),
        bucket_bytes=int(population.slice_bytes[index]) if _is_ddp(population, index) else 0,
        teams=tuple(plans.teams[ranks] for ranks in used),
        shards=shard_specs(population, index),
        buckets=tuple(_pieces(plans, bucket) for bucket in buckets),
        messages=tuple(_message(plans, row, team, place) for row in rows),
        sharding=sharding,
        ddp=population.ddp_arguments[population.ddp[index]],
        extensions=of_plan(population.extensions[population.extension[index]]),
    )


def _message(plans: PlanTable, row: int, team: dict[int, int], place: dict[int, int]) -> Message:
    """team, place: of the table's teams and buckets, the indices in the plan's own tables."""
    values = {name: getattr(plans, name)[row].item() for name in MESSAGE_COLUMNS}
    codes = {
        "operation": Op(values["operation"]),
        "channel": Channel(values["channel"]),
        "update": Update(values["update"]),
    }
    tables = {"teams": team[values.pop("ranks")], "bucket": place[values["bucket"]]}
    return Message(**values | codes | tables)


def _engine_name(population: Population, index: int) -> EngineName:
    if population.engine[index]:
        return "fully_shard"
    return "ddp" if _is_ddp(population, index) else "autosync"


def _is_ddp(population: Population, index: int) -> bool:
    return bool(population.order[index] == Order.DDP)


def shard_specs(population: Population, index: int) -> tuple[ShardSpec, ...]:
    """The shards of strategy `index`, row by row."""
    specs = []
    variable, offset = -1, 0
    for row in range(int(population.first[index]), int(population.first[index + 1])):
        if population.variable[row] != variable:
            variable, offset = int(population.variable[row]), 0
        length = int(population.length[row])
        specs.append(ShardSpec(variable, int(population.axis[index, variable]), offset, length))
        offset += length
    return tuple(specs)


def _pieces(plans: PlanTable, bucket: int) -> tuple[Piece, ...]:
    span = range(int(plans.bucket_first[bucket]), int(plans.bucket_first[bucket + 1]))
    return tuple(
        Piece(int(plans.piece_row[p]), int(plans.piece_start[p]), int(plans.piece_stop[p]))
        for p in span
    )
