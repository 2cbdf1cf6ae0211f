"""Random proposals: a proposal is its (seed, index)."""

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.population import Population
from autosync.search.sampler.adjacent_merge import merge_adjacent
from autosync.search.sampler.draw_kernels import draw_choices, draw_shard_methods, fill_shards
from autosync.search.sampler.load_balance import balance_load
from autosync.search.sampler.sampling_tables import empty_choices, empty_shards, sampler_inputs
from autosync.search.sampler.sharded_draws import MOST_DRAWS, sample_sharded
from autosync.search.space import Space


def sample(domain: Domain, space: Space, start: int, n: int, seed: int) -> Population:
    """`n` proposals; row i depends only on (seed, start + i). Releases the GIL while it works.

    Raises:
        InvalidInput: the space leaves nothing to draw, or an argument is out of range.
    """
    if n < 0 or start < 0 or start + n >= 1 << 63:
        raise InvalidInput(
            f"cannot sample {n} proposals from number {start}.", thing="sample", value=(start, n)
        )
    return sample_at(domain, space, np.arange(start, start + n, dtype=np.uint64), seed)


def most_draws(space: Space, asked: int) -> int:
    """How many of the proposals that are asked for are drawn from a space."""
    match space.only:
        case "buckets":  # whose sizes are all listed
            return 0
        case "fsdp2":
            return min(asked, MOST_DRAWS)
        case "":
            return asked


def sample_at(domain: Domain, space: Space, indices: NDArray[np.uint64], seed: int) -> Population:
    """The proposals of these indices, in their order."""
    if not 0 <= seed < 1 << 64:
        raise InvalidInput(
            f"the seed is {seed}.", thing="seed", value=seed, remedy="Use 0 to 2**64 - 1."
        )
    if space.only == "fsdp2":
        return sample_sharded(domain, space, indices, seed)
    tables, options, layouts, extensions = sampler_inputs(domain, space)
    key, n = np.uint64(seed), len(indices)
    choices = empty_choices(n, len(tables.variables))
    draw_choices(tables, key, indices, choices)
    shards = empty_shards(choices.parts)
    fill_shards(tables, choices, shards)
    if space.shard_methods:
        draw_shard_methods(tables, key, indices, choices, shards)
    balance_load(tables, key, indices, choices.axis, shards)
    merge_adjacent(tables, key, indices, choices, shards)
    return Population(
        layouts=layouts,
        options=options,
        engines=(None,),
        ddp_arguments=(None,),
        extensions=extensions,
        layout=choices.layout,
        engine=np.zeros(n, dtype=np.uint16),
        ddp=np.zeros(n, dtype=np.uint16),
        extension=choices.extension,
        order=choices.order,
        slice_bytes=choices.slice_bytes,
        overlap=choices.overlap,
        idle_gather=choices.idle_gather,
        axis=choices.axis,
        parts=choices.parts,
        position=np.zeros(len(shards.variable), dtype=np.int32),
        **shards._asdict(),
    )
