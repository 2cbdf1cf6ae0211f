"""Which methods a variable may switch to where its cut stays, and their options: for compiled
kernels."""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.population import Option
from autosync.search.sampler.draw_kernels import choose_encoding
from autosync.search.sampler.sampling_tables import (
    FACTORS,
    FIRST_ORDER,
    GATHER,
    HIERARCHICAL,
    OWNER_HIERARCHICAL,
    SCATTER,
    SCATTER_SHARDED,
    SUMMER_HIERARCHICAL,
    Record,
    SamplerInputs,
    Tables,
)
from autosync.strategy import EXACT


class Forms(NamedTuple):
    """Options by their numbers in a population of parents, of which there are O.

    option i64[]: of `variant * E + encoding`. encoding i64[O]: of each option, as the tables number
    them (0 of those that the space does not have). returns bool[O]: gradients, by owners.
    """

    option: NDArray[np.int64]
    encoding: NDArray[np.int64]
    returns: NDArray[np.bool_]


def forms_among(options: tuple[Option, ...], inputs: SamplerInputs) -> Forms:
    """options: of the population, which has all that the sampler can draw."""
    encodings = (EXACT, *(o.encoding for o in inputs.options if o.encoding != EXACT))
    known = {each: number for number, each in enumerate(dict.fromkeys(encodings))}
    numbers = {option: number for number, option in enumerate(options)}
    drawn = inputs.tables.synchronizers["option"]
    return Forms(
        np.array([numbers[inputs.options[each]] for each in drawn], dtype=np.int64),
        np.array([known.get(option.encoding, 0) for option in options], dtype=np.int64),
        np.array([option.returns_gradients for option in options]),
    )


@njit(nogil=True)
def may_take(rules: Record, variable: Record, parts: int, variant: int) -> bool:
    """Whether a variable of so many shards may be synchronized so."""
    owned = variant <= OWNER_HIERARCHICAL
    summed = FACTORS < variant <= SUMMER_HIERARCHICAL
    if (owned or variant == SCATTER_SHARDED) and not rules.elementwise:
        return False
    if variant in (OWNER_HIERARCHICAL, HIERARCHICAL, SUMMER_HIERARCHICAL) and not rules.hierarchy:
        return False
    if owned or summed:
        return bool(rules.owners) and not (summed and variable.sparse)
    if variable.sparse or variant == GATHER:
        return bool(variable.sparse) and variant == GATHER and parts == 1
    if variant == FACTORS:
        return bool(variable.factorable) and parts == 1
    if variant in (SCATTER, SCATTER_SHARDED):
        return bool(rules.scatters)
    if variant >= FIRST_ORDER + rules.orders:
        return False
    return bool(rules.reduces)


@njit(nogil=True)
def option_of(
    tables: Tables, forms: Forms, variable: Record, option: int, variant: int
) -> tuple[Any, Any]:
    """Method and option of a variant for a variable that keeps its encoding where it applies."""
    encodings = len(tables.low_rank)
    encoding = choose_encoding(variable, forms.encoding[option], tables.low_rank, variant)
    place = variant * encodings + encoding
    return tables.synchronizers[place].method, forms.option[place]
