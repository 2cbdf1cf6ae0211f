"""Strategies in words, for ranked tables and reports."""

from collections import Counter
from collections.abc import Iterable, Iterator

from autosync.domain import Domain
from autosync.extensions.registry import iterations_in_flight, verification_of
from autosync.graph import ITEM_BYTES, Variable
from autosync.strategy import (
    EXACT,
    AllGather,
    AllReduce,
    Factors,
    ParameterServer,
    ReduceScatter,
    Schedule,
    Strategy,
    Synchronizer,
    VariableChoice,
)
from autosync.torch_engine import DDP_BUCKET_BYTES, FullyShard
from autosync.units import MIB

NAMED = 2
"""At most this many variables are named."""


def describe(strategy: Strategy, domain: Domain | None = None) -> str:
    """One line: methods from the most bytes to the fewest, cuts, shares, and the schedule.

    Without a domain sizes are left out, and methods stand by their number of shards.
    """
    phrases = [_synchronization(strategy, domain)]
    for entry in strategy.extensions:
        phrases += verification_of(entry.key).describe(strategy, domain)
    return "; ".join(phrases)


def _synchronization(strategy: Strategy, domain: Domain | None) -> str:
    if strategy.engine is not None:
        units = _groups(strategy.choices)
        words = f"torch's {engine_name(strategy)} in {units} {'unit' if units == 1 else 'units'}"
        return "; ".join((words, *sharding_details(strategy, strategy.engine)))
    if strategy.schedule.order == "ddp":
        buckets = _groups(strategy.choices)
        counted = f"{buckets} {'bucket' if buckets == 1 else 'buckets'}"
        limits = bucket_sizes(strategy)
        words = f"torch's DDP with {f'{limits}: ' if limits else 'its own '}{counted}"
        hook = hook_name(strategy)
        return f"{words} and its {hook} hook" if hook else words
    sizes = _shard_bytes(strategy, domain)
    weight: Counter[str] = Counter()
    members: dict[str, list[VariableChoice]] = {}
    shards: dict[str, list[Synchronizer]] = {}
    for choice, bytes_each in zip(strategy.choices, sizes, strict=True):
        names = [method(shard) for shard in choice.shards]
        for name, shard, size in zip(names, choice.shards, bytes_each, strict=True):
            weight[name] += size
            shards.setdefault(name, []).append(shard)
        for name in dict.fromkeys(names):
            members.setdefault(name, []).append(choice)
    phrases = [
        _phrase(name, members[name], shards[name], size, domain, len(weight) == 1)
        for name, size in weight.most_common()
    ]
    phrases += _cuts(strategy.choices)
    phrases += [f"batch shares {shares}"] if (shares := batch_shares(strategy)) else []
    phrases.append(_schedule(strategy.schedule))
    return "; ".join(phrases)


def sharding_details(strategy: Strategy, engine: FullyShard) -> Iterator[str]:
    """The options of `fully_shard`, besides units and mesh, that differ from torch's default."""
    blocks = len(engine.units)
    if 0 < engine.kept_units < blocks:
        root = _groups(strategy.choices) - blocks  # 0 where it holds no variable
        yield f"{engine.kept_units + root} units keep their values until backward"
    for ranks in engine.smaller_groups:
        count = engine.resharding.count(ranks)
        which = "units" if count == blocks else f"{count} units"
        yield f"{which} reshard within groups of {ranks} ranks"
    ahead = engine.forward_prefetch, engine.backward_prefetch
    if ahead != (1, 1):
        yield "prefetching {} in forward, {} in backward".format(*ahead)
    if engine.param_dtype:
        yield f"values gathered and computed with in {engine.param_dtype}"
    if engine.kept_between_batches:
        also = " and values" if engine.kept_between_batches == "values" else ""
        yield f"whole gradients{also} kept between batches"
    encoding = getattr(strategy.choices[0].shards[0], "encoding", EXACT)
    if encoding != EXACT:
        yield f"gradients reduced in {encoding.name}"


def engine_name(strategy: Strategy) -> str:
    """The name of the strategy's torch engine; empty without one."""
    engine, world = strategy.engine, len(strategy.replicas)
    if engine is None:
        return ""
    name = "FSDP2" if engine.reshard_after_forward else "FSDP2 without resharding (ZeRO-2)"
    if engine.shard_ranks == world:
        return name
    return f"{name.replace('FSDP2', 'HSDP')} over groups of {engine.shard_ranks} ranks"


def bucket_sizes(strategy: Strategy) -> str:
    """The argument of torch's DDP that sets the bucket sizes; empty for DDP's own sizes."""
    size_bytes, arguments = strategy.schedule.slice_bytes, strategy.schedule.ddp
    if arguments is not None and arguments.bucket_limits_bytes:
        return f"bucket_cap_mb_list of {len(arguments.bucket_limits_bytes)} sizes"
    usual = size_bytes in (0, DDP_BUCKET_BYTES)
    return "" if usual else f"bucket_cap_mb={size_bytes / MIB:.4g}"


def hook_name(strategy: Strategy) -> str:
    """The name of the communication hook on torch's DDP; empty without one."""
    shards = (shard for choice in strategy.choices for shard in choice.shards)
    for shard in shards:
        if isinstance(shard, AllReduce) and shard.encoding.name != "none":
            encoding = shard.encoding
            return f"PowerSGD rank {encoding.rank}" if encoding.rank else encoding.name
    return ""


def method(shard: Synchronizer) -> str:
    """The synchronizer in words, its encoding included."""
    match shard:
        case ParameterServer():
            name = "hierarchical parameter server" if shard.hierarchical else "parameter server"
            name += " that returns gradients" if shard.returns_gradients else ""
        case AllReduce():
            name = "all-reduce" if shard.algorithm == "ring" else f"{shard.algorithm} all-reduce"
            if shard.device_order:
                name = f"all-reduce along {'-'.join(map(str, shard.device_order))}"
        case ReduceScatter():
            name = "reduce-scatter"
            if shard.sharded_update:
                name += " with sharded update"
        case AllGather():
            return "all-gather of touched rows"
        case Factors():
            return "factored gradients"
    return name if shard.encoding.name == "none" else f"{name} in {shard.encoding.name}"


def _phrase(
    name: str,
    choices: list[VariableChoice],
    shards: list[Synchronizer],
    size: int,
    domain: Domain | None,
    only: bool,
) -> str:
    """`all-reduce in 6 groups of 16 MiB`; few variables are named."""
    groups = len({shard.group for shard in shards})
    text = f"{name} in {groups} {'group' if groups == 1 else 'groups'}"
    servers = {shard.server for shard in shards if isinstance(shard, ParameterServer)}
    if servers:
        text += f" on {len(servers)} {'owner' if len(servers) == 1 else 'owners'}"
    if domain is not None:
        text += f" of {size_in_words(size / groups)}"
    if only:
        return text
    if len(choices) <= NAMED:
        return f"{text} for {' and '.join(choice.variable for choice in choices)}"
    return f"{text} for {len(choices)} variables"


def _cuts(choices: Iterable[VariableChoice]) -> list[str]:
    cut = [choice for choice in choices if len(choice.shards) > 1]
    if not cut:
        return []
    shards = sum(len(choice.shards) for choice in cut)
    subject = f"{len(cut)} variables" if len(cut) > NAMED else " and ".join(c.variable for c in cut)
    return [f"{subject} cut into {shards} shards"]


def script_lines(strategy: Strategy, file: str) -> list[str]:
    """How a training script applies a bundle of the strategy. file: which holds the bundle."""
    shards = (shard for choice in strategy.choices for shard in choice.shards)
    loses = any(getattr(shard, "encoding", EXACT) != EXACT for shard in shards)
    loses |= strategy.engine is not None and strategy.engine.param_dtype != ""
    options = ", allow_lossy=True" if loses else ""
    options += ", allow_inexact=True" if iterations_in_flight(strategy.extensions) else ""
    call = f'autosync.distribute(model, optimizer, "{file}"{options})'
    lines = ["import autosync", f"model, optimizer = {call}"]
    if batch_shares(strategy):
        lines.append(f'sampler = autosync.ShareSampler(data, global_batch, "{file}")')
        lines.append("loader = DataLoader(data, sampler.batch_size, sampler=sampler)")
    return lines


def batch_shares(strategy: Strategy) -> str:
    """`20% to 40%`, with as many digits as tell the two apart; empty where shares are equal."""
    shares = [replica.share for replica in strategy.replicas]
    low, high = min(shares), max(shares)
    if high - low < 1e-6:
        return ""
    digits = next((n for n in range(4) if f"{low:.{n}%}" != f"{high:.{n}%}"), 4)
    return f"{low:.{digits}%} to {high:.{digits}%}"


def _schedule(schedule: Schedule) -> str:
    words = {
        "fifo": "as gradients get ready",
        "priority": "front layers first",
        "explicit": "in an explicit order",
    }
    text = words[schedule.order]
    if schedule.slice_bytes:
        text += f", in slices of {size_in_words(schedule.slice_bytes)}"
    if schedule.overlap_forward:
        text += ", also during the next forward pass"
    return text + (", all-gathers wait for idle links" if schedule.gather == "when_idle" else "")


def _groups(choices: Iterable[VariableChoice]) -> int:
    return len({shard.group for choice in choices for shard in choice.shards})


def _shard_bytes(strategy: Strategy, domain: Domain | None) -> list[list[int]]:
    """Bytes that a replica sends for every shard; without a domain each counts 1."""
    if domain is None:
        return [[1] * len(choice.shards) for choice in strategy.choices]
    both = zip(domain.graph.variables, strategy.choices, strict=True)
    return [_bytes_of_shards(variable, choice, domain.accumulate) for variable, choice in both]


def _bytes_of_shards(variable: Variable, choice: VariableChoice, batches: int) -> list[int]:
    lengths, kinds = choice.partition.lengths, {type(shard): shard for shard in choice.shards}
    whole = {kind: _sent_bytes(variable, shard, batches) for kind, shard in kinds.items()}
    total = sum(lengths)
    both = zip(lengths, choice.shards, strict=True)
    return [whole[type(shard)] * length // total for length, shard in both]


def _sent_bytes(variable: Variable, shard: Synchronizer, batches: int) -> int:
    """Of a whole variable: touched rows when sparse, K(M+N) elements by factors, each of all
    batches of an update."""
    if variable.sparse:
        touched = min(batches * variable.touched_rows, variable.shape[0])
        return variable.size_bytes * touched // variable.shape[0]
    if isinstance(shard, Factors):
        sides = variable.shape[0] + variable.elements // variable.shape[0]
        return batches * variable.factor_rows * sides * ITEM_BYTES[variable.dtype]
    return variable.size_bytes


def size_in_words(size: float) -> str:
    """In powers of 1,024, as slices and buckets are cut: `4 MiB`."""
    if size < 0.1 * MIB:
        return f"{size / 1024:.0f} KiB"
    return f"{size / MIB:.0f} MiB" if size >= 10 * MIB else f"{size / MIB:.2g} MiB"
