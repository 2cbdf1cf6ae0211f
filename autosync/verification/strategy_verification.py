"""What a strategy must satisfy to run on a domain and to synchronize it exactly."""

from collections.abc import Iterable
from dataclasses import replace
from math import fsum

from autosync.domain import Domain
from autosync.errors import InvalidStrategy, NotSupported
from autosync.extensions.registry import verification_of
from autosync.strategy import ParameterServer, Strategy, Synchronizer, VariableChoice
from autosync.verification.refusals import SHARE_TOLERANCE, variable_refusal
from autosync.verification.shard_checks import check_exact, check_partition, check_shard
from autosync.verification.torch_verification import check_ddp, check_fully_shard


def verify(
    strategy: Strategy, domain: Domain, *, allow_lossy: bool = False, allow_inexact: bool = False
) -> None:
    """Refuse what cannot be on the domain or does not synchronize it.

    Owners may be dedicated server hosts, which can be predicted; see `check_runnable`.
    allow_lossy: messages may lose information. allow_inexact: so may what an extension does, such
    as late updates.

    Raises:
        InvalidStrategy: names the variable (or the field) and the reason.
    """
    _check_variables(strategy, domain)
    _check_replicas(strategy, domain)
    for variable, choice in zip(domain.graph.variables, strategy.choices, strict=True):
        check_partition(variable, choice)
        for shard in _kinds_of(choice):
            check_shard(strategy, variable, choice, shard, domain)
            if not allow_lossy:
                check_exact(variable, shard)
    _check_groups(strategy, domain)
    _check_schedule(strategy, domain)
    for entry in strategy.extensions:
        verification_of(entry.key).verify(strategy, domain, allow_inexact)


def _kinds_of(choice: VariableChoice) -> Iterable[Synchronizer]:
    """Its shards, each of those that differ by their group alone once."""
    if len(choice.shards) == 1:
        return choice.shards
    return dict.fromkeys(replace(shard, group=0) for shard in choice.shards)


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


def _check_groups(strategy: Strategy, domain: Domain) -> None:
    seen: dict[int, tuple[Synchronizer, tuple[str, bool], str]] = {}
    one_bucket = strategy.schedule.order == "ddp"  # which torch itself takes apart
    for variable, choice in zip(domain.graph.variables, strategy.choices, strict=True):
        for shard in choice.shards:
            if shard.group < 0:
                raise variable_refusal(variable, "group", shard.group, f"has group {shard.group}")
            values = (variable.dtype, variable.sparse and not one_bucket)
            other, others, first = seen.setdefault(shard.group, (shard, values, choice.variable))
            if other != shard or others != values:
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
