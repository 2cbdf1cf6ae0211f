"""What a strategy must satisfy to run on a domain and to synchronize it exactly."""

from collections.abc import Iterable
from dataclasses import replace
from math import fsum

from autosync.domain import Domain
from autosync.errors import InvalidStrategy, NotSupported
from autosync.graph import Variable
from autosync.placement_verification import check_placement
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
from autosync.torch_verification import (
    SHARE_TOLERANCE,
    check_ddp,
    check_fully_shard,
    variable_refusal,
)


def verify(
    strategy: Strategy, domain: Domain, *, allow_lossy: bool = False, allow_staleness: bool = False
) -> None:
    """Refuse what cannot be on the domain or does not synchronize it.

    Owners may be dedicated server hosts, which can be predicted; see `check_runnable`.

    Raises:
        InvalidStrategy: names the variable (or the field) and the reason.
    """
    _check_variables(strategy, domain)
    _check_replicas(strategy, domain)
    for variable, choice in zip(domain.graph.variables, strategy.choices, strict=True):
        _check_partition(variable, choice)
        for shard in dict.fromkeys(replace(shard, group=0) for shard in choice.shards):
            _check_shard(strategy, variable, choice, shard, domain)
            if not allow_lossy:
                _check_exact(variable, shard)
    _check_groups(strategy, domain)
    _check_schedule(strategy, domain)
    if strategy.staleness and not allow_staleness:
        raise InvalidStrategy(
            f"the strategy lets a replica lag {strategy.staleness} iterations, which is not exact.",
            thing="staleness",
            value=strategy.staleness,
            remedy="Allow staleness where the training can bear it, or use staleness 0.",
        )


def check_runnable(choices: Iterable[VariableChoice], world_size: int) -> None:
    """Refuse what is sound and can be predicted, but not run: ranks alone take part in training.

    Raises:
        NotSupported: a dedicated server host owns a shard; names the variable.
    """
    for choice in choices:
        for shard in choice.shards:
            if isinstance(shard, ParameterServer) and shard.server >= world_size:
                raise NotSupported(
                    f"variable {choice.variable!r} is owned by server {shard.server}, a dedicated "
                    "server host: that can be predicted, but not run, for ranks alone take part "
                    "in training.",
                    thing=f"variable {choice.variable}",
                    value=shard.server,
                    remedy=f"Let a rank own it, 0 to {world_size - 1}.",
                )


def _check_variables(strategy: Strategy, domain: Domain) -> None:
    names = [variable.name for variable in domain.graph.variables]
    given = [choice.variable for choice in strategy.choices]
    if given == names:
        return
    known, chosen = set(names), set(given)
    odd = [name for name in given if name not in known]
    missing = [name for name in names if name not in chosen]
    named = odd or missing or [a for a, b in zip(given, names, strict=False) if a != b] or given
    what = "does not exist" if odd else "has no choice" if missing else "is out of order"
    raise InvalidStrategy(
        f"variable {named[0]!r} {what}: the strategy has {len(given)} variables, graph "
        f"{domain.graph.name!r} has {len(names)}.",
        thing=f"variable {named[0]}",
        value=named[0],
        remedy="This strategy belongs to another graph: rank strategies for this one.",
    )


def _check_replicas(strategy: Strategy, domain: Domain) -> None:
    ranks = sorted(replica.rank for replica in strategy.replicas)
    if ranks != list(range(domain.world_size)):
        raise InvalidStrategy(
            f"the strategy places replicas on ranks {ranks[:16]}; cluster {domain.cluster.name!r} "
            f"has ranks 0 to {domain.world_size - 1}, and each holds one replica.",
            thing="replicas",
            value=ranks[:16],
            remedy="Rank strategies for this cluster.",
        )
    shares = [replica.share for replica in strategy.replicas]
    if min(shares) <= 0 or abs(fsum(shares) - 1) > SHARE_TOLERANCE:
        raise InvalidStrategy(
            f"the replicas' shares add up to {fsum(shares):.6g}, the least is {min(shares):.6g}: "
            "they must be positive and add up to 1.",
            thing="replicas",
            value=shares[:16],
        )


def _check_partition(variable: Variable, choice: VariableChoice) -> None:
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
    if variable.sparse and axis != 0 and len(lengths) > 1:
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


def _check_shard(
    strategy: Strategy,
    variable: Variable,
    choice: VariableChoice,
    shard: Synchronizer,
    domain: Domain,
) -> None:
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
    _check_elementwise(variable, "an update by its owner", domain)
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
            "Use all_reduce, or reduce_scatter without sharded_update.",
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


def _check_exact(variable: Variable, shard: Synchronizer) -> None:
    if not isinstance(shard, AllGather | Factors) and shard.encoding.name != "none":
        raise variable_refusal(
            variable,
            "encoding",
            shard.encoding.name,
            f"is sent as {shard.encoding.name}, which loses information",
            "Allow lossy messages, or send it as it is.",
        )


def _check_groups(strategy: Strategy, domain: Domain) -> None:
    seen: dict[int, tuple[Synchronizer, tuple[str, bool], str]] = {}
    one_bucket = strategy.schedule.order == "ddp"  # which torch itself takes apart
    for variable, choice in zip(domain.graph.variables, strategy.choices, strict=True):
        for shard in choice.shards:
            if shard.group < 0:
                raise variable_refusal(variable, "group", shard.group, f"has group {shard.group}")
            alike = replace(shard, group=0)
            values = (variable.dtype, variable.sparse and not one_bucket)
            kind, others, first = seen.setdefault(shard.group, (alike, values, choice.variable))
            if kind != alike or others != values:
                raise variable_refusal(
                    variable,
                    "group",
                    shard.group,
                    f"shares group {shard.group} with {first!r}, but differs from it in method, "
                    "server, option, type or sparsity",
                    "Members of a group travel in one message.",
                )


def _check_schedule(strategy: Strategy, domain: Domain) -> None:
    schedule = strategy.schedule
    if schedule.order == "explicit" and sorted(schedule.positions) != list(range(strategy.shards)):
        raise InvalidStrategy(
            f"schedule.positions must hold each of 0 to {strategy.shards - 1} once.",
            thing="schedule.positions",
            value=schedule.positions[:16],
        )
    if schedule.gather == "when_idle" and not schedule.overlap_forward:
        raise InvalidStrategy(
            "schedule.gather is 'when_idle', but schedule.overlap_forward is false: step() waits "
            "for all-gathers whenever they leave.",
            thing="schedule.gather",
            value=schedule.gather,
            remedy="Let synchronization run into the next forward pass, or leave gather out.",
        )
    if schedule.order == "ddp":
        check_ddp(strategy, domain)
    if strategy.engine is not None:
        check_fully_shard(strategy, strategy.engine, domain)
    if strategy.placement:
        check_placement(strategy, domain)
