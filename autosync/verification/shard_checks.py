"""What one shard of a variable must satisfy: its partition, its synchronizer and its encoding."""

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.graph import Variable
from autosync.strategy import (
    AllGather,
    AllReduce,
    Encoding,
    Factors,
    ParameterServer,
    ReduceScatter,
    Strategy,
    Synchronizer,
    VariableChoice,
)

SHARE_TOLERANCE = 1e-6


def variable_refusal(
    variable: Variable, field: str, value: object, why: str, remedy: str = ""
) -> InvalidStrategy:
    return InvalidStrategy(
        f"variable {variable.name!r} {why}.",
        thing=f"variable {variable.name}, {field}",
        value=value,
        remedy=remedy,
    )


def check_partition(variable: Variable, choice: VariableChoice) -> None:
    """Raises InvalidStrategy where the parts are not those of the variable."""
    axis, lengths = choice.partition.axis, choice.partition.lengths
    if not -1 <= axis < len(variable.shape):
        raise variable_refusal(
            variable, "axis", axis, f"has no axis {axis}: its shape is {variable.shape}"
        )
    dimension = variable.elements if axis < 0 else variable.shape[axis]
    if sum(lengths) != dimension:
        what = "elements" if axis < 0 else f"along axis {axis}"
        raise variable_refusal(
            variable,
            "partition",
            sum(lengths),
            f"has {dimension} {what}, but its shards add up to {sum(lengths)}",
        )
    if variable.sparse and (axis > 0 or (axis < 0 and len(lengths) > 1)):
        raise variable_refusal(
            variable, "axis", axis, "has a sparse gradient, which is cut along axis 0 only"
        )
    kinds = sorted({shard.kind for shard in choice.shards})
    if variable.sparse and {"all_gather", "parameter_server"} <= set(kinds):
        raise variable_refusal(
            variable,
            "synchronizer",
            kinds,
            "has a sparse gradient, whose rows are all gathered or all owned",
            "Choose one of the two for all of its shards.",
        )


def check_shard(
    strategy: Strategy,
    variable: Variable,
    choice: VariableChoice,
    shard: Synchronizer,
    domain: Domain,
) -> None:
    """Raises InvalidStrategy where its synchronizer cannot carry the shard on this domain."""
    whole = len(choice.shards) == 1
    if variable.sparse and not isinstance(shard, ParameterServer | AllGather):
        if strategy.schedule.order == "ddp":
            return
        raise variable_refusal(
            variable,
            "synchronizer",
            shard.kind,
            f"has a sparse gradient, which {shard.kind} cannot carry",
            "Use parameter_server or all_gather.",
        )
    match shard:
        case ParameterServer():
            _check_server(variable, shard, domain)
        case AllReduce():
            _check_all_reduce(variable, shard, domain)
        case ReduceScatter():
            if shard.sharded_update:
                _check_elementwise(variable, "a sharded update", domain)
        case AllGather() if not variable.sparse:
            raise variable_refusal(
                variable,
                "synchronizer",
                "all_gather",
                "has a dense gradient, which all_gather does not sum",
                "Use all_reduce or reduce_scatter.",
            )
        case AllGather() if not whole:
            raise variable_refusal(
                variable, "partition", len(choice.shards), "is gathered, but not whole"
            )
        case Factors() if not variable.factor_rows:
            raise variable_refusal(
                variable,
                "synchronizer",
                "factors",
                "is no linear layer's weight, so its gradient has no factors",
            )
        case Factors() if not whole:
            raise variable_refusal(
                variable, "partition", len(choice.shards), "is sent by factors, but not whole"
            )
    if not isinstance(shard, AllGather | Factors):
        _check_encoding(variable, shard, shard.encoding, whole)


def _check_server(variable: Variable, shard: ParameterServer, domain: Domain) -> None:
    cluster = domain.cluster
    if not 0 <= shard.server < cluster.servers:
        raise variable_refusal(
            variable,
            "server",
            shard.server,
            f"is owned by server {shard.server}, of servers 0 to {cluster.servers - 1}",
        )
    if not shard.returns_gradients:
        _check_elementwise(variable, "an update by its owner", domain)
    elif variable.sparse:
        raise variable_refusal(
            variable,
            "returns_gradients",
            True,
            "has a sparse gradient, whose rows an owner updates and returns as values",
            "Leave returns_gradients out for it, or use all_gather.",
        )
    if shard.hierarchical:
        _check_hierarchy(variable, domain)


def _check_all_reduce(variable: Variable, shard: AllReduce, domain: Domain) -> None:
    if shard.algorithm == "hierarchical":
        _check_hierarchy(variable, domain)
    if not shard.device_order:
        return
    if shard.algorithm != "ring":
        raise variable_refusal(
            variable,
            "device_order",
            shard.device_order,
            f"orders devices along a ring, but its all-reduce is {shard.algorithm}",
        )
    if sorted(shard.device_order) != list(range(domain.world_size)):
        raise variable_refusal(
            variable,
            "device_order",
            shard.device_order,
            f"has a ring that does not visit each of {domain.world_size} ranks once",
        )
    if domain.cluster.backend == "nccl":
        raise variable_refusal(
            variable,
            "device_order",
            shard.device_order,
            "has an explicit ring, but NCCL picks its own topology",
            "Leave device_order empty, or use gloo.",
        )


def _check_hierarchy(variable: Variable, domain: Domain) -> None:
    if all(node.ranks <= 1 for node in domain.cluster.nodes):
        raise variable_refusal(
            variable,
            "hierarchical",
            True,
            f"is reduced inside nodes first, but no node of {domain.cluster.name!r} has several "
            "ranks",
        )


def _check_elementwise(variable: Variable, what: str, domain: Domain) -> None:
    if not domain.optimizer.elementwise:
        raise variable_refusal(
            variable,
            "optimizer",
            domain.optimizer.name,
            f"takes {what}, but optimizer {domain.optimizer.name!r} is not elementwise",
            "Use all_reduce, reduce_scatter without sharded_update, or a parameter_server with "
            "returns_gradients.",
        )


def _check_encoding(
    variable: Variable, shard: Synchronizer, encoding: Encoding, whole: bool
) -> None:
    if encoding.name != "powersgd":
        return
    if not isinstance(shard, AllReduce) or shard.algorithm != "ring":
        raise variable_refusal(
            variable,
            "encoding",
            encoding.rank,
            f"is packed by PowerSGD of rank {encoding.rank} under {shard.kind}: it takes a ring "
            "all_reduce",
        )
    if not whole or len(variable.shape) < 2:
        raise variable_refusal(
            variable, "encoding", "powersgd", "is packed by PowerSGD, but is no whole matrix"
        )


def check_exact(variable: Variable, shard: Synchronizer) -> None:
    """Raises InvalidStrategy where its encoding loses information."""
    if not isinstance(shard, AllGather | Factors) and shard.encoding.name != "none":
        raise variable_refusal(
            variable,
            "encoding",
            shard.encoding.name,
            f"is sent as {shard.encoding.name}, which loses information",
            "Allow lossy messages, or send it as it is.",
        )
