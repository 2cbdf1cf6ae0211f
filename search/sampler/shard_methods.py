"""Methods of single shards: those of a variable may differ. Compiled."""

import numpy as np
from numpy.typing import NDArray

from autosync.search.sampler.counter_random import stream, word
from autosync.search.sampler.draw_kernels import (
    CHOICES,
    PINNED,
    SHARD_METHODS,
    choose_variant,
    draw_style,
)
from autosync.search.sampler.drawn_columns import ChoiceColumns, ShardColumns
from autosync.search.sampler.sampling_tables import FACTORS, Tables
from autosync.simulator.numba_cache import cached_kernel


@cached_kernel(allocates=False)
def draw_shard_methods(
    tables: Tables,
    seed: np.uint64,
    indices: NDArray[np.uint64],
    choices: ChoiceColumns,
    shards: ShardColumns,
) -> None:
    """Choose anew how each shard of a cut variable is synchronized, in proposals whose style says
    so. A shard keeps its variable's encoding; sparse variables and whole ones stay as they are."""
    variables, rules, encodings = tables.variables, tables.rules[0], len(tables.low_rank)
    for i in range(len(indices)):
        style = draw_style(rules, tables.encodings, stream(seed, indices[i], CHOICES))
        if not style.shard_methods or choices.extension[i] > 0:
            continue
        name, row = stream(seed, indices[i], SHARD_METHODS), shards.first[i]
        for v in range(len(variables)):
            own = choices.synchronizer[i, v]
            for number in range(choices.parts[i, v]):
                if own != PINNED and choices.parts[i, v] > 1 and not variables[v].sparse:
                    coins = word(name, row + number - shards.first[i])
                    variant = choose_variant(variables[v], style, coins)
                    if variant != FACTORS:
                        chosen = tables.synchronizers[variant * encodings + own % encodings]
                        shards.method[row + number] = chosen.method
                        shards.option[row + number] = chosen.option
            row += choices.parts[i, v]
