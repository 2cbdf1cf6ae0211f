"""A rank's own part of a plan that places modules: without the variables that it does not hold."""

from dataclasses import dataclass, replace

from autosync.plan import Plan


@dataclass(frozen=True, slots=True)
class HeldPlan:
    """names: of the variables that the rank holds, those that all ranks hold first, so that these,
    their buckets and their messages have the same numbers on every rank. holders: of each variable,
    the ranks that hold it. variables, messages: of each, its place in the whole plan.
    """

    plan: Plan
    names: tuple[str, ...]
    holders: tuple[tuple[int, ...], ...]
    variables: tuple[int, ...]
    messages: tuple[int, ...]

    @property
    def apart(self) -> tuple[int, ...]:
        """Numbers of the variables that some ranks do not hold."""
        world = self.plan.world_size
        return tuple(i for i, ranks in enumerate(self.holders) if len(ranks) < world)


def held_by(plan: Plan, names: tuple[str, ...], rank: int) -> HeldPlan:
    """names: of the plan's variables, in its order."""
    world = plan.world_size
    if not plan.placement:
        everywhere = (tuple(range(world)),) * len(names)
        numbers = tuple(range(len(names)))
        return HeldPlan(plan, names, everywhere, numbers, tuple(range(len(plan.messages))))
    ranks_of_bucket: list[set[int]] = [set() for _ in plan.buckets]
    for message in plan.messages:
        for team in plan.teams[message.teams]:
            ranks_of_bucket[message.bucket].update(team)
    ranks_of_variable: list[set[int]] = [set() for _ in names]
    for bucket, pieces in enumerate(plan.buckets):
        for piece in pieces:
            ranks_of_variable[plan.shards[piece.shard].variable] |= ranks_of_bucket[bucket]
    variables = _held(ranks_of_variable, rank, world)
    buckets = _held(ranks_of_bucket, rank, world)
    variable_at = {variable: place for place, variable in enumerate(variables)}
    shards = [i for i, shard in enumerate(plan.shards) if shard.variable in variable_at]
    shard_at = {shard: place for place, shard in enumerate(shards)}
    bucket_at = {bucket: place for place, bucket in enumerate(buckets)}
    messages = tuple(i for i, each in enumerate(plan.messages) if each.bucket in bucket_at)
    own = replace(
        plan,
        shards=tuple(
            replace(plan.shards[i], variable=variable_at[plan.shards[i].variable]) for i in shards
        ),
        buckets=tuple(
            tuple(replace(piece, shard=shard_at[piece.shard]) for piece in plan.buckets[bucket])
            for bucket in buckets
        ),
        messages=tuple(
            replace(plan.messages[i], bucket=bucket_at[plan.messages[i].bucket]) for i in messages
        ),
    )
    return HeldPlan(
        own,
        tuple(names[variable] for variable in variables),
        tuple(tuple(sorted(ranks_of_variable[variable])) for variable in variables),
        tuple(variables),
        messages,
    )


def _held(ranks_of: list[set[int]], rank: int, world: int) -> list[int]:
    """Those of the rank, what all ranks hold first."""
    mine = [index for index, ranks in enumerate(ranks_of) if rank in ranks]
    return sorted(mine, key=lambda index: len(ranks_of[index]) < world)
