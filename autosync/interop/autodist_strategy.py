"""AutoDist's strategy files: read for a domain, and written from our strategies.

| AutoDist | here |
|---|---|
| AllReduceSynchronizer of any spec | `all_reduce` (ring, the backend's order), merged by group |
| the same for a sparse gradient | `all_gather`, each in its own message, as AutoDist gathers |
| PSSynchronizer | `parameter_server` owned by the device's server, each shard its own message |
| local_replication | `hierarchical` where a node has several replicas; else it changes nothing |
| partitioner "1,4,1" | 4 parts along axis 1; a remainder goes to the first parts, a row each |
| Horovod, PowerSGD compressors | `fp16`, `powersgd` of rank 1, if lossy messages are allowed |

Messages are sent as gradients become ready. What has no counterpart is refused by name, in both
directions.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from autosync.domain import Domain
from autosync.errors import InvalidStrategy, NotSupported
from autosync.extensions.registry import verification_of
from autosync.extensions.staleness.document import MAX_STALENESS, Staleness, iterations_of, late_by
from autosync.graph import Variable
from autosync.interop.protobuf_messages import new_message, parse_message
from autosync.interop.resource_spec import DeviceNames, names_of_devices
from autosync.strategy import (
    EXACT,
    AllGather,
    AllReduce,
    Encoding,
    Factors,
    ParameterServer,
    Partition,
    ReduceScatter,
    Strategy,
    Synchronizer,
    VariableChoice,
    even_replicas,
    split,
    whole,
)
from autosync.verification import verify
from autosync.verification.shard_checks import SHARE_TOLERANCE

MAX_STRATEGY_BYTES = 16_000_000
POWER_SGD_RANK = 1
"""AutoDist's PowerSGDCompressor has no other unless its code is changed; files do not say it."""
SPECS = range(3)
"""Libraries of an all-reduce: AUTO, NCCL, RING."""
COMPRESSORS = ("NONE", "HOROVOD", "HOROVOD_EF", "POWER_SGD")
"""How an all-reduce's messages are packed, by number; all but the first are lossy."""
ENCODINGS = {EXACT: 0, Encoding("fp16"): 1, Encoding("powersgd", POWER_SGD_RANK): 3}
"""Numbers of the compressors that are encodings here."""


def import_strategy(
    data: bytes,
    domain: Domain,
    *,
    devices: DeviceNames | None = None,
    without_gradient: Collection[str] = (),
    allow_lossy: bool = False,
    allow_inexact: bool = False,
    source: str = "strategy",
) -> Strategy:
    """The strategy of a serialized AutoDist strategy, verified for the domain.

    devices: names of the cluster's devices; left out, GPUs and CPUs count from 0 on each host.
    without_gradient: variables that the strategy may name though there is nothing to synchronize.

    Raises:
        InvalidInput: the bytes are no strategy; names the offset and the field.
        InvalidStrategy: it is none for this domain; names the variable and the reason.
        NotSupported: our strategies have no such choice; names the variable and the reason,
            and its `value` is that reason alone.
    """
    message = parse_message("Strategy", data, source, MAX_STRATEGY_BYTES, allow_unknown=False)
    names = devices or names_of_devices(domain.cluster)
    _check_replicas(message, domain, names, source)
    nodes = _by_variable(message, domain, without_gradient, source)
    reader = _Reader(domain, names)
    choices = tuple(
        reader.choice(variable, nodes[variable.name]) for variable in domain.graph.variables
    )
    strategy = Strategy(
        choices,
        even_replicas(domain.world_size),
        name=message.id,
        extensions=late_by(reader.staleness()),
    )
    verify(strategy, domain, allow_lossy=allow_lossy, allow_inexact=allow_inexact)
    return strategy


def variable_name(tensor: str) -> str:
    """AutoDist names a variable by its tensor, "layer/kernel:0"."""
    return tensor.removesuffix(":0")


def _check_replicas(message: Any, domain: Domain, names: DeviceNames, source: str) -> None:
    stated = list(message.graph_config.replicas)
    ranks = [names.rank(name) for name in stated]
    missing = sorted(set(range(domain.world_size)) - set(ranks))
    if missing or len(ranks) != domain.world_size:
        times = Counter(stated)
        odd = names.replica[missing[0]] if missing else next(s for s in stated if times[s] > 1)
        raise InvalidStrategy(
            f"{source} has {len(ranks)} replicas for {domain.world_size} devices: {odd!r} holds "
            f"{'none' if missing else 'several'}, and here each holds one.",
            thing="graph_config.replicas",
            value=odd,
            remedy="Describe a cluster of just the devices that the strategy uses.",
        )


def _by_variable(
    message: Any, domain: Domain, ignored: Collection[str], source: str
) -> Mapping[str, Any]:
    known = {variable.name for variable in domain.graph.variables}
    found: dict[str, Any] = {}
    for node in message.node_config:
        name = variable_name(node.var_name)
        if name in ignored:
            continue
        if name not in known or name in found:
            why = "has two node configs" if name in found else "is unknown"
            raise _other_graph(node.var_name, why, domain, source)
        found[name] = node
    for variable in domain.graph.variables:
        if variable.name not in found:
            raise _other_graph(variable.name, "has no node config", domain, source)
    return found


def _other_graph(name: str, why: str, domain: Domain, source: str) -> InvalidStrategy:
    return InvalidStrategy(
        f"variable {name!r} {why} in {source}; graph {domain.graph.name!r} has "
        f"{len(domain.graph.variables)} variables.",
        thing=f"variable {name}",
        value=why,
        remedy="Name variables as the graph does: this strategy may belong to another one.",
    )


@dataclass(slots=True)
class _Reader:
    """One strategy being read: numbers groups as they appear, collects the servers' staleness."""

    domain: Domain
    names: DeviceNames
    groups: dict[tuple[object, ...], int] = field(default_factory=dict)
    stale: dict[int, str] = field(default_factory=dict)

    def choice(self, variable: Variable, node: Any) -> VariableChoice:
        partition = _partition(variable, node)
        if len(partition.lengths) == 1 and not node.part_config:
            return VariableChoice(variable.name, partition, (self.shard(variable, node),))
        _check_configured(variable, node, len(partition.lengths))
        for index, part in enumerate(node.part_config):
            _check_part(variable, part, index)
        shards = tuple(self.shard(variable, part) for part in node.part_config)
        return VariableChoice(variable.name, partition, shards)

    def shard(self, variable: Variable, node: Any) -> Synchronizer:
        match node.HasField("PSSynchronizer"), node.HasField("AllReduceSynchronizer"):
            case True, False:
                return self.owned(variable, node.PSSynchronizer)
            case False, True:
                return self.collective(variable, node.AllReduceSynchronizer)
            case False, False:
                _cannot(variable, "has no synchronizer")
            case _:
                _cannot(variable, "has two synchronizers")

    def owned(self, variable: Variable, ps: Any) -> ParameterServer:
        if not ps.sync:
            _cannot(variable, "is updated asynchronously (sync is false)")
        if not 0 <= ps.staleness <= MAX_STALENESS:
            _cannot(variable, f"has staleness {ps.staleness}")
        self.stale.setdefault(ps.staleness, variable.name)
        several = any(node.ranks > 1 for node in self.domain.cluster.nodes)
        return ParameterServer(
            self.names.server(ps.reduction_destination),
            self.group(None),
            hierarchical=ps.local_replication and several,
        )

    def collective(self, variable: Variable, message: Any) -> AllReduce | AllGather:
        if message.spec not in SPECS or not 0 <= message.compressor < len(COMPRESSORS):
            _cannot(variable, f"has spec {message.spec} and compressor {message.compressor}")
        self.stale.setdefault(0, variable.name)
        encoding = _encoding(variable, COMPRESSORS[message.compressor])
        if variable.sparse:
            return AllGather(self.group(None))
        alike = (message.group, variable.dtype, encoding)
        return AllReduce(self.group(alike), encoding=encoding)

    def group(self, alike: tuple[object, ...] | None) -> int:
        """The number of the message of those alike, or of a message of its own."""
        return self.groups.setdefault(alike or (len(self.groups),), len(self.groups))

    def staleness(self) -> int:
        if len(self.stale) > 1:
            raise NotSupported(
                f"variables {' and '.join(map(repr, self.stale.values()))} have staleness "
                f"{' and '.join(map(str, self.stale))}: here all have the same.",
                thing="staleness",
                value="several values of staleness",
            )
        return next(iter(self.stale))


def _partition(variable: Variable, node: Any) -> Partition:
    partitioner = node.partitioner
    if not partitioner:
        return whole(variable.shape)
    counts = [int(part) if _is_count(part) else 0 for part in partitioner.split(",")]
    if len(counts) != len(variable.shape) or min(counts) < 1:
        _cannot(variable, f"has the partitioner {partitioner[:40]!r} for shape {variable.shape}")
    cut = [axis for axis, parts in enumerate(counts) if parts > 1]
    if len(cut) > 1:
        _cannot(variable, f"is cut along {len(cut)} axes")
    if cut and counts[cut[0]] > variable.shape[cut[0]]:
        _cannot(variable, f"of shape {variable.shape} is cut into {partitioner!r} parts")
    if not cut:
        return whole(variable.shape)
    _check_configured(variable, node, counts[cut[0]])  # before so many parts are made
    return split(variable.shape, cut[0], counts[cut[0]])


def _check_configured(variable: Variable, node: Any, parts: int) -> None:
    if len(node.part_config) != parts:
        _cannot(
            variable,
            f"is cut into {parts} parts by {node.partitioner!r}, but {len(node.part_config)} "
            "are configured",
        )


def _is_count(part: str) -> bool:
    digits = part.strip()
    return digits.isascii() and digits.isdecimal() and len(digits) < 10


def _check_part(variable: Variable, part: Any, index: int) -> None:
    if part.partitioner or part.part_config:
        _cannot(variable, "has parts that are cut again")
    expected, _, number = variable_name(part.var_name).rpartition("/part_")
    if expected and number.isdecimal() and number != str(index):
        _cannot(variable, "has its parts out of order")


def _encoding(variable: Variable, compressor: str) -> Encoding:
    if compressor == "NONE":
        return EXACT
    if variable.sparse:
        _cannot(variable, f"has a sparse gradient under compressor {compressor}")
    if compressor == "HOROVOD":
        return Encoding("fp16")
    if compressor == "POWER_SGD":  # AutoDist leaves vectors as they are, matrices of n by 1 too
        small = len(variable.shape) < 2 or (len(variable.shape) == 2 and 1 in variable.shape)
        return EXACT if small else Encoding("powersgd", POWER_SGD_RANK)
    _cannot(variable, f"has compressor {compressor}, fp16 with error feedback")


def _cannot(variable: Variable, why: str) -> NoReturn:
    raise NotSupported(
        f"variable {variable.name!r} {why}: there is no such choice here.",
        thing=f"variable {variable.name}",
        value=why,
        remedy="Import it without that choice, or leave the strategy out.",
    )


def export_strategy(
    strategy: Strategy,
    domain: Domain,
    *,
    devices: DeviceNames | None = None,
    allow_lossy: bool = False,
) -> bytes:
    """The strategy as a serialized AutoDist strategy; `import_strategy` is the inverse.

    Raises:
        InvalidStrategy: it is none for this domain.
        NotSupported: the format cannot express it; names the variable (or the field) and the
            reason, and its `value` is that reason alone.
    """
    verify(strategy, domain, allow_lossy=allow_lossy, allow_inexact=True)
    _check_schedule_and_shares(strategy)
    names = devices or names_of_devices(domain.cluster)
    writer = _Writer(strategy, names)
    nodes = [
        writer.node(variable, choice)
        for variable, choice in zip(domain.graph.variables, strategy.choices, strict=True)
    ]
    message = new_message("Strategy", id=strategy.name or strategy.id, node_config=nodes)
    message.graph_config.replicas.extend(names.replica)
    data: bytes = message.SerializeToString()
    return data


def _check_schedule_and_shares(strategy: Strategy) -> None:
    """Refuse choices for all variables together; AutoDist sends messages as gradients get ready."""
    schedule = strategy.schedule
    if schedule.order != "fifo":
        _refuse("schedule", f"has the sending order {schedule.order}")
    if schedule.slice_bytes:
        _refuse("schedule", "cuts messages into slices")
    if schedule.overlap_forward:
        _refuse("schedule", "continues during the next forward pass")
    shares = [replica.share for replica in strategy.replicas]
    if max(shares) - min(shares) > SHARE_TOLERANCE:
        _refuse("replicas", "have uneven shares of the batch")
    for entry in strategy.without(Staleness).extensions:
        words = verification_of(entry.key).describe(strategy, None)
        _refuse(entry.key, f"has {'; '.join(words)}")


class _Writer:
    def __init__(self, strategy: Strategy, names: DeviceNames) -> None:
        self.staleness = iterations_of(strategy)
        self.names = names
        self.groups: dict[int, int] = {}
        self.members: dict[int, int] = {}
        for choice in strategy.choices:
            for shard in choice.shards:
                self.members[shard.group] = self.members.get(shard.group, 0) + 1

    def node(self, variable: Variable, choice: VariableChoice) -> Any:
        axis, parts = choice.partition.axis, len(choice.shards)
        tensor = f"{variable.name}:0"
        if parts == 1:
            return next(self.synchronizers(variable, choice.shards, [tensor]))
        if axis < 0:
            _refuse(f"variable {variable.name}", "is cut into flat pieces")
        if choice.partition != split(variable.shape, axis, parts):
            _refuse(f"variable {variable.name}", "is cut into unequal parts")
        counts = ["1"] * len(variable.shape)
        counts[axis] = str(parts)
        tensors = [f"{variable.name}/part_{index}:0" for index in range(parts)]
        parts_config = self.synchronizers(variable, choice.shards, tensors)
        return new_message(
            "Node", var_name=tensor, partitioner=",".join(counts), part_config=parts_config
        )

    def synchronizers(
        self, variable: Variable, shards: tuple[Synchronizer, ...], tensors: list[str]
    ) -> Iterator[Any]:
        for tensor, shard in zip(tensors, shards, strict=True):
            kind, fields = self.synchronizer(variable, shard)
            yield new_message("Node", var_name=tensor, **{kind: new_message(kind, **fields)})

    def synchronizer(self, variable: Variable, shard: Synchronizer) -> tuple[str, dict[str, Any]]:
        """The message's name and its fields."""
        name = f"variable {variable.name}"
        match shard:
            case AllReduce() if shard.algorithm != "ring":
                _refuse(name, f"is all-reduced by the {shard.algorithm} algorithm")
            case AllReduce() if shard.device_order:
                _refuse(name, "is all-reduced along an explicit ring")
            case ParameterServer() | AllGather() if self.members[shard.group] > 1:
                _refuse(name, f"shares a message of {shard.kind} with others")
            case ParameterServer() if shard.returns_gradients:
                _refuse(name, "has an owner that returns gradients")
            case ReduceScatter() | Factors():
                _refuse(name, f"is synchronized by {shard.kind}")
        if isinstance(shard, AllGather):
            return "AllReduceSynchronizer", {"group": self.group(shard.group)}
        if shard.encoding not in ENCODINGS:
            _refuse(name, f"is sent as {shard.encoding.name} of rank {shard.encoding.rank}")
        if shard.encoding.name == "powersgd" and _encoding(variable, "POWER_SGD") == EXACT:
            _refuse(name, f"of shape {variable.shape} is packed by PowerSGD")
        if isinstance(shard, AllReduce):
            fields = {"compressor": ENCODINGS[shard.encoding], "group": self.group(shard.group)}
            return "AllReduceSynchronizer", fields
        if shard.encoding != EXACT:
            _refuse(name, f"is sent to its server as {shard.encoding.name}")
        return "PSSynchronizer", {
            "reduction_destination": self.names.destination[shard.server],
            "local_replication": shard.hierarchical,
            "sync": True,
            "staleness": self.staleness,
        }

    def group(self, number: int) -> int:
        """Groups of collectives, numbered in order of first appearance."""
        return self.groups.setdefault(number, len(self.groups))


def _refuse(thing: str, why: str) -> NoReturn:
    raise NotSupported(
        f"the {thing} {why}: a strategy file of AutoDist cannot say that.",
        thing=thing,
        value=why,
        remedy="Keep it as our own document, which says everything.",
    )
