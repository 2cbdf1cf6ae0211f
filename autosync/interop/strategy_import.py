"""AutoDist's strategy files, read for a domain.

| AutoDist | here |
|---|---|
| AllReduceSynchronizer of any spec | `all_reduce` (ring, the backend's order), merged by group |
| the same for a sparse gradient | `all_gather`, each in its own message, as AutoDist gathers |
| PSSynchronizer | `parameter_server` owned by the device's server, each shard its own message |
| local_replication | `hierarchical` where a node has several replicas; else it changes nothing |
| partitioner "1,4,1" | 4 parts along axis 1; a remainder goes to the first parts, a row each |
| Horovod, PowerSGD compressors | `fp16`, `powersgd` of rank 1, if lossy messages are allowed |

Messages are sent as gradients become ready. What has no counterpart is refused by name.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from autosync.domain import Domain
from autosync.errors import InvalidInput, InvalidStrategy, NotSupported
from autosync.extensions.staleness.document import MAX_STALENESS, late_by
from autosync.graph import Variable
from autosync.interop.autodist_messages import (
    AllReduceSynchronizer,
    Compressor,
    NodeConfig,
    PSSynchronizer,
    Spec,
    StrategyMessage,
)
from autosync.interop.device_names import DeviceNames, names_of_devices
from autosync.interop.protobuf_records import decode
from autosync.interop.protobuf_wire import Window
from autosync.strategy import (
    EXACT,
    AllGather,
    AllReduce,
    Encoding,
    ParameterServer,
    Partition,
    Strategy,
    Synchronizer,
    VariableChoice,
    even_replicas,
    split,
    whole,
)
from autosync.verification import verify

MAX_STRATEGY_BYTES = 16_000_000
MAX_STRATEGY_VALUES = 1_000_000
POWER_SGD_RANK = 1
"""AutoDist's PowerSGDCompressor has no other unless its code is changed; files do not say it."""


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
    if len(data) > MAX_STRATEGY_BYTES:
        raise InvalidInput(
            f"{source} has {len(data)} bytes; a strategy has at most {MAX_STRATEGY_BYTES}.",
            thing=source,
            value=len(data),
        )
    message = decode(StrategyMessage, Window.of(data, source), MAX_STRATEGY_VALUES)
    names = devices or names_of_devices(domain.cluster)
    _check_replicas(message, domain, names, source)
    nodes = _by_variable(message, domain, without_gradient, source)
    reader = _StrategyReader(domain, names)
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


def _check_replicas(
    message: StrategyMessage, domain: Domain, names: DeviceNames, source: str
) -> None:
    stated = message.graph_config.replicas if message.graph_config else ()
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
    message: StrategyMessage, domain: Domain, ignored: Collection[str], source: str
) -> Mapping[str, NodeConfig]:
    known = {variable.name for variable in domain.graph.variables}
    found: dict[str, NodeConfig] = {}
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
class _StrategyReader:
    """One strategy being read: numbers groups as they appear, collects the servers' staleness."""

    domain: Domain
    names: DeviceNames
    groups: dict[tuple[object, ...], int] = field(default_factory=dict)
    stale: dict[int, str] = field(default_factory=dict)

    def choice(self, variable: Variable, node: NodeConfig) -> VariableChoice:
        partition = _partition(variable, node)
        if len(partition.lengths) == 1 and not node.part_config:
            return VariableChoice(variable.name, partition, (self.shard(variable, node),))
        _check_configured(variable, node, len(partition.lengths))
        for index, part in enumerate(node.part_config):
            _check_part(variable, part, index)
        shards = tuple(self.shard(variable, part) for part in node.part_config)
        return VariableChoice(variable.name, partition, shards)

    def shard(self, variable: Variable, node: NodeConfig) -> Synchronizer:
        match node.ps, node.all_reduce:
            case PSSynchronizer() as ps, None:
                return self.owned(variable, ps)
            case None, AllReduceSynchronizer() as collective:
                return self.collective(variable, collective)
            case None, None:
                _cannot(variable, "has no synchronizer")
            case _:
                _cannot(variable, "has two synchronizers")

    def owned(self, variable: Variable, ps: PSSynchronizer) -> ParameterServer:
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

    def collective(
        self, variable: Variable, message: AllReduceSynchronizer
    ) -> AllReduce | AllGather:
        if message.spec not in set(Spec) or message.compressor not in set(Compressor):
            _cannot(variable, f"has spec {message.spec} and compressor {message.compressor}")
        self.stale.setdefault(0, variable.name)
        encoding = _encoding(variable, Compressor(message.compressor))
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


def _partition(variable: Variable, node: NodeConfig) -> Partition:
    partitioner = node.partitioner
    if not partitioner:
        return whole(variable.shape)
    counts = [int(part) if _is_count(part) else 0 for part in partitioner.split(",")]
    if len(counts) != len(variable.shape) or min(counts) < 1:
        _cannot(
            variable, f"has the partitioner {partitioner[:40]!r} for the shape {variable.shape}"
        )
    cut = [axis for axis, parts in enumerate(counts) if parts > 1]
    if len(cut) > 1:
        _cannot(variable, f"is cut along {len(cut)} axes")
    if cut and counts[cut[0]] > variable.shape[cut[0]]:
        _cannot(variable, f"of shape {variable.shape} is cut into {partitioner!r} parts")
    if not cut:
        return whole(variable.shape)
    _check_configured(variable, node, counts[cut[0]])  # before so many parts are made
    return split(variable.shape, cut[0], counts[cut[0]])


def _check_configured(variable: Variable, node: NodeConfig, parts: int) -> None:
    if len(node.part_config) != parts:
        _cannot(
            variable,
            f"is cut into {parts} parts by {node.partitioner!r}, but {len(node.part_config)} "
            "are configured",
        )


def _is_count(part: str) -> bool:
    digits = part.strip()
    return digits.isascii() and digits.isdecimal() and len(digits) < 10


def _check_part(variable: Variable, part: NodeConfig, index: int) -> None:
    if part.partitioner or part.part_config:
        _cannot(variable, "has parts that are cut again")
    expected, _, number = variable_name(part.var_name).rpartition("/part_")
    if expected and number.isdecimal() and number != str(index):
        _cannot(variable, "has its parts out of order")


def _encoding(variable: Variable, compressor: Compressor) -> Encoding:
    if compressor is Compressor.NONE:
        return EXACT
    if variable.sparse:
        _cannot(variable, f"has a sparse gradient under compressor {compressor.name}")
    match compressor:
        case Compressor.HOROVOD:
            return Encoding("fp16")
        case Compressor.POWER_SGD:  # which AutoDist leaves out for vectors, n by 1 too
            small = len(variable.shape) < 2 or (len(variable.shape) == 2 and 1 in variable.shape)
            return EXACT if small else Encoding("powersgd", POWER_SGD_RANK)
        case _:
            _cannot(variable, f"has compressor {compressor.name}, fp16 with error feedback")


def _cannot(variable: Variable, why: str) -> NoReturn:
    raise NotSupported(
        f"variable {variable.name!r} {why}: there is no such choice here.",
        thing=f"variable {variable.name}",
        value=why,
        remedy="Import it without that choice, or leave the strategy out.",
    )
