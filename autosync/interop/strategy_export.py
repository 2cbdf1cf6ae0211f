"""Our strategies as AutoDist's strategy files, as far as that format can express them."""

from collections.abc import Iterator
from typing import NoReturn

from autosync.domain import Domain
from autosync.errors import NotSupported
from autosync.extensions.registry import verification_of
from autosync.extensions.staleness.document import Staleness
from autosync.extensions.staleness.verification import iterations_of
from autosync.graph import Variable
from autosync.interop.autodist_messages import (
    AllReduceSynchronizer,
    Compressor,
    GraphConfig,
    NodeConfig,
    PSSynchronizer,
    StrategyMessage,
)
from autosync.interop.device_names import DeviceNames, names_of_devices
from autosync.interop.protobuf_records import encode
from autosync.interop.strategy_import import POWER_SGD_RANK
from autosync.strategy import (
    EXACT,
    AllGather,
    AllReduce,
    Encoding,
    Factors,
    ParameterServer,
    ReduceScatter,
    Strategy,
    Synchronizer,
    VariableChoice,
    split,
)
from autosync.verification import verify
from autosync.verification.refusals import SHARE_TOLERANCE

COMPRESSORS = {
    EXACT: Compressor.NONE,
    Encoding("fp16"): Compressor.HOROVOD,
    Encoding("powersgd", POWER_SGD_RANK): Compressor.POWER_SGD,
}


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
    writing = _Writing(strategy, names)
    nodes = tuple(
        writing.node(variable, choice)
        for variable, choice in zip(domain.graph.variables, strategy.choices, strict=True)
    )
    return encode(
        StrategyMessage(
            id=strategy.name or strategy.id,
            node_config=nodes,
            graph_config=GraphConfig(names.replica),
        )
    )


def _check_schedule_and_shares(strategy: Strategy) -> None:
    """Refuse choices for all variables together; AutoDist sends messages as gradients get ready."""
    schedule = strategy.schedule
    if schedule.order != "fifo":
        _refuse("schedule", f"has the sending order {schedule.order}")
    if schedule.slice_bytes:
        _refuse("schedule", "cuts messages into slices")
    if schedule.overlap_forward:
        _refuse("schedule", "runs into the next forward pass")
    shares = [replica.share for replica in strategy.replicas]
    if max(shares) - min(shares) > SHARE_TOLERANCE:
        _refuse("replicas", "have uneven shares of the batch")
    for entry in strategy.without(Staleness).extensions:
        words = verification_of(entry.key).describe(strategy, None)
        _refuse(entry.key, f"has {'; '.join(words)}")


class _Writing:
    def __init__(self, strategy: Strategy, names: DeviceNames) -> None:
        self.staleness = iterations_of(strategy)
        self.names = names
        self.groups: dict[int, int] = {}
        self.members: dict[int, int] = {}
        for choice in strategy.choices:
            for shard in choice.shards:
                self.members[shard.group] = self.members.get(shard.group, 0) + 1

    def node(self, variable: Variable, choice: VariableChoice) -> NodeConfig:
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
        configured = tuple(self.synchronizers(variable, choice.shards, tensors))
        return NodeConfig(tensor, partitioner=",".join(counts), part_config=configured)

    def synchronizers(
        self, variable: Variable, shards: tuple[Synchronizer, ...], tensors: list[str]
    ) -> Iterator[NodeConfig]:
        for tensor, shard in zip(tensors, shards, strict=True):
            synchronizer = self.synchronizer(variable, shard)
            if isinstance(synchronizer, PSSynchronizer):
                yield NodeConfig(tensor, ps=synchronizer)
            else:
                yield NodeConfig(tensor, all_reduce=synchronizer)

    def synchronizer(
        self, variable: Variable, shard: Synchronizer
    ) -> PSSynchronizer | AllReduceSynchronizer:
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
        if not isinstance(shard, ParameterServer) and self.staleness:
            _refuse("staleness", "is only for variables with a server")
        if isinstance(shard, AllGather):
            return AllReduceSynchronizer(group=self.group(shard.group))
        if shard.encoding not in COMPRESSORS:
            _refuse(name, f"is sent as {shard.encoding.name} of rank {shard.encoding.rank}")
        if isinstance(shard, AllReduce):
            compressor = COMPRESSORS[shard.encoding]
            return AllReduceSynchronizer(compressor=compressor, group=self.group(shard.group))
        if shard.encoding != EXACT:
            _refuse(name, f"is sent to its server as {shard.encoding.name}")
        destination = self.names.destination[shard.server]
        return PSSynchronizer(destination, shard.hierarchical, True, self.staleness)

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
