"""Compiled kernels that draw proposals: first every variable's choices, then the rows.

Every choice is uniform as AutoSync's published sampler has it, except that a strategy first draws
a style (mostly servers or collectives, one method or several, cut or whole), because 200
independent coins would make every proposal the same even mixture.

Never drawn, though the runtime runs it: unequal cuts and explicit orders of messages, of which
random ones only keep the link idle (designs compute them); orders of a ring where no link between
nodes has a rate of its own, as all are then alike or worse; shares of the batch other than even
ones and those by speed; torch's DDP, which is tried anyway. A cut has one axis, for so has a shard
of a plan.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from autosync.search.sampler.counter_random import draw, stream, word
from autosync.search.sampler.sampling_tables import (
    FACTORS,
    FIRST_ORDER,
    GATHER,
    HIERARCHICAL,
    OWNER,
    OWNER_HIERARCHICAL,
    OWNER_HIERARCHICAL_RETURNS_GRADIENTS,
    OWNER_RETURNS_GRADIENTS,
    RING,
    SCATTER,
    SCATTER_SHARDED,
    TREE,
    ChoiceColumns,
    Record,
    ShardColumns,
    Tables,
)
from autosync.simulator.numba_cache import cached_kernel
from autosync.units import MIB

CHOICES = 1
"""Purpose of the random stream of a proposal's choices."""

SHARD_METHODS = 4
"""Purpose of the random stream of shards that choose by themselves."""

IDLE_GATHERS = 5
"""Purpose of the random stream of when all-gathers start."""

EXTENSIONS = 6
"""Purpose of the random stream of what proposals carry of extensions."""

PINNED = -1
"""Synchronizer of a variable whose choice the user pinned."""

NEVER, HALF, ALWAYS = 0, 128, 256
"""Chances of a per-variable coin, in 256ths."""

WHOLE, AXES, PIECES = 0, 1, 2
"""Ways a strategy cuts: not at all, along axes as published, into fixed-size pieces."""

PIECE_BYTES = np.array([MIB, 2 * MIB, 4 * MIB, 8 * MIB], dtype=np.int64)
"""Fixed-size pieces to draw from: Poseidon's pairs are 2 MB, BytePS' pieces 4 MB."""

_STYLE_WORDS = 16
_WORDS_PER_VARIABLE = 4
_RETURNS_WORD = 1 << 20
"""Of a style, too, but behind the words of all variables: what was drawn before stays as it was."""
_BYTE = np.uint64(255)
_8, _16, _24, _32 = np.uint64(8), np.uint64(16), np.uint64(24), np.uint64(32)


class Style(NamedTuple):
    """What a strategy does throughout; chances are those of each variable's own coin."""

    owner_chance: int
    scatter_chance: int
    hierarchy_chance: int
    tree: bool
    sharded: bool
    cheap_factors: bool
    factor_chance: int
    encoding: int
    cutting: int
    piece_bytes: int
    order: int
    shard_methods: bool
    variable_encodings: bool
    owners_update: bool
    returns_gradients: bool


@njit(nogil=True, _nrt=False)
def draw_style(rules: Record, encodings: NDArray[np.int64], name: np.uint64) -> Style:
    architecture = draw(name, 0, 8)
    owner_chance = ALWAYS if architecture < 2 else (HALF if architecture < 4 else NEVER)
    if not rules.owners:
        owner_chance = NEVER
    if not (rules.reduces or rules.scatters):
        owner_chance = ALWAYS
    collective = draw(name, 1, 5)
    scatter_chance = ALWAYS if collective < 2 else (HALF if collective < 3 else NEVER)
    if not rules.scatters:
        scatter_chance = NEVER
    if not rules.reduces:
        scatter_chance = ALWAYS
    hierarchy = draw(name, 2, 4)
    hierarchy_chance = ALWAYS if hierarchy < 2 else (HALF if hierarchy < 3 else NEVER)
    factors = draw(name, 5, 16)
    cutting = draw(name, 7, 4)
    return Style(
        owner_chance,
        scatter_chance,
        hierarchy_chance if rules.hierarchy else NEVER,
        draw(name, 3, 8) == 0,
        rules.elementwise and draw(name, 4, 2) == 0,
        factors < 8,
        HALF if factors == 15 else NEVER,
        encodings[draw(name, 6, len(encodings))],
        WHOLE if cutting == 0 else (PIECES if cutting == 1 else AXES),
        PIECE_BYTES[draw(name, 8, len(PIECE_BYTES))],
        max(0, draw(name, 13, 2 * rules.orders + 1) - rules.orders),
        rules.shard_methods
        and HALF in (owner_chance, scatter_chance, hierarchy_chance)
        and draw(name, 14, 2) == 0,
        len(encodings) > 1 and draw(name, 15, 2) == 0,
        rules.elementwise,
        not rules.elementwise or draw(name, _RETURNS_WORD, 2) == 0,
    )


@njit(nogil=True, _nrt=False)
def returns_alone(style: Style) -> bool:
    """Whether owners return gradients and nothing else is gathered, so that the schedule's rule for
    gathers applies to returned gradients alone."""
    gathers = style.scatter_chance > NEVER and style.owner_chance < ALWAYS
    chosen: bool = style.returns_gradients and style.owner_chance > NEVER and not gathers
    return chosen


@njit(nogil=True, _nrt=False)
def draw_extension(rules: Record, extensions: NDArray[np.int64], name: np.uint64) -> int:
    if not rules.carries_owned:
        return 0
    drawn: int = extensions[draw(name, 0, len(extensions))]
    return drawn


@njit(nogil=True, _nrt=False)
def plain_style(style: Style) -> Style:
    """The same cuts, owned throughout and sent as they are: of proposals that carry something of an
    extension."""
    return Style(
        ALWAYS,
        NEVER,
        NEVER,
        False,
        False,
        False,
        NEVER,
        0,
        style.cutting,
        style.piece_bytes,
        0,
        False,
        False,
        True,
        False,
    )


@njit(nogil=True, _nrt=False)
def choose_variant(variable: Record, style: Style, coins: np.uint64) -> int:
    """How a variable's shards are synchronized; four bytes of `coins` are its coins."""
    owner = np.int64(coins & _BYTE) < style.owner_chance
    hierarchical = np.int64((coins >> _8) & _BYTE) < style.hierarchy_chance
    if owner and style.returns_gradients and not variable.sparse:
        return OWNER_HIERARCHICAL_RETURNS_GRADIENTS if hierarchical else OWNER_RETURNS_GRADIENTS
    if owner and style.owners_update:
        return OWNER_HIERARCHICAL if hierarchical else OWNER
    if variable.sparse:
        return GATHER
    factors = style.cheap_factors and variable.cheap_factors
    if factors or (variable.factorable and np.int64((coins >> _24) & _BYTE) < style.factor_chance):
        return FACTORS
    if np.int64((coins >> _16) & _BYTE) < style.scatter_chance:
        return SCATTER_SHARDED if style.sharded else SCATTER
    if hierarchical:
        return HIERARCHICAL
    if style.tree:
        return TREE
    return FIRST_ORDER + style.order - 1 if style.order > 0 else RING


@njit(nogil=True, _nrt=False)
def choose_encoding(
    variable: Record, encoding: int, low_rank: NDArray[np.bool_], variant: int
) -> int:
    """The encoding where it applies: PowerSGD packs whole matrices for ring all-reduces."""
    if variant in (GATHER, FACTORS) or variable.sparse:
        return 0
    if not low_rank[encoding]:
        return encoding if variable.wide else 0
    return encoding if variable.matrix and (variant == RING or variant >= FIRST_ORDER) else 0


@njit(nogil=True, _nrt=False)
def choose_axis(variable: Record, name: np.uint64, number: int) -> int:
    """An axis longer than 1, uniformly (axis 0 only for embeddings); -1 where there is none."""
    if variable.by_rows:
        return 0 if variable.dims[0] > 1 else -1
    longer = 0
    for axis in range(variable.rank):
        longer += variable.dims[axis] > 1
    if longer == 0:
        return -1
    chosen = draw(name, number, longer)
    for axis in range(variable.rank):
        if variable.dims[axis] > 1:
            if chosen == 0:
                return axis
            chosen -= 1
    return -1


@njit(nogil=True, _nrt=False)
def choose_cut(
    variable: Record, style: Style, max_parts: int, name: np.uint64, number: int
) -> tuple[int, int, int]:
    """(axis, parts, length of a full piece) of a variable that may be cut."""
    elements = variable.elements
    if style.cutting == PIECES and not variable.sparse:
        least = (elements + max_parts - 1) // max_parts
        piece = min(max(style.piece_bytes // variable.item_bytes, least), elements)
        return -1, (elements + piece - 1) // piece, piece
    if draw(name, number + 1, 2) == 0:
        return -1, 1, elements
    axis = choose_axis(variable, name, number + 2)
    if axis < 0:
        return -1, 1, elements
    most = min(variable.dims[axis], max_parts)
    return axis, 2 + draw(name, number + 3, most - 1), elements


@cached_kernel(allocates=False)
def draw_choices(
    tables: Tables, seed: np.uint64, indices: NDArray[np.uint64], choices: ChoiceColumns
) -> None:
    """Fill all columns of the proposals' choices."""
    variables, rules, low_rank = tables.variables, tables.rules[0], tables.low_rank
    encodings = tables.encodings
    slices, axis, parts = tables.slice_bytes, choices.axis, choices.parts
    for i in range(len(indices)):
        name = stream(seed, indices[i], CHOICES)
        style = draw_style(rules, encodings, name)
        carried = stream(seed, indices[i], EXTENSIONS)
        choices.extension[i] = draw_extension(rules, tables.extensions, carried)
        if choices.extension[i] > 0:
            style = plain_style(style)
        choices.order[i] = 1 if rules.priority and draw(name, 9, 2) == 0 else 0
        choices.slice_bytes[i] = slices[draw(name, 10, len(slices))]
        choices.overlap[i] = rules.overlap and draw(name, 11, 3) > 0
        choices.idle_gather[i] = (
            (rules.idle_gathers or returns_alone(style))
            and choices.overlap[i]
            and draw(stream(seed, indices[i], IDLE_GATHERS), 0, 2) == 0
        )
        if choices.extension[i] > 0:
            choices.overlap[i] = choices.idle_gather[i] = False
        choices.layout[i] = draw(name, 12, rules.layouts)
        for v in range(len(variables)):
            variable = variables[v]
            number = _STYLE_WORDS + _WORDS_PER_VARIABLE * v
            if variable.pin >= 0:
                choices.synchronizer[i, v] = PINNED
                axis[i, v], parts[i, v] = variable.pin_axis, variable.pin_parts
                continue
            coins = word(name, number)
            variant = choose_variant(variable, style, coins)
            encoding = style.encoding
            if style.variable_encodings:
                encoding = encodings[np.int64(((coins >> _32) * np.uint64(len(encodings))) >> _32)]
            encoding = choose_encoding(variable, encoding, low_rank, variant)
            choices.synchronizer[i, v] = variant * len(low_rank) + encoding
            axis[i, v], parts[i, v], choices.flat_length[i, v] = -1, 1, variable.elements
            indivisible = variant in (GATHER, FACTORS) or low_rank[encoding]
            if (
                style.cutting != WHOLE
                and variable.cuttable
                and rules.max_parts > 1
                and not indivisible
            ):
                axis[i, v], parts[i, v], choices.flat_length[i, v] = choose_cut(
                    variable, style, rules.max_parts, name, number
                )


@cached_kernel(allocates=False)
def fill_shards(tables: Tables, choices: ChoiceColumns, shards: ShardColumns) -> None:
    """Fill the shards' rows. Owners (server -1) and groups (-1) of unpinned shards stay open."""
    variables, pins, first = tables.variables, tables.pins, shards.first
    for i in range(len(first) - 1):
        stop = first[i]
        for v in range(len(variables)):
            start, count = stop, choices.parts[i, v]
            stop = start + count
            pin = variables[v].pin
            if pin >= 0:
                for part in range(count):
                    _fill_pinned(shards, start + part, v, pins[pin + part])
                continue
            chosen = tables.synchronizers[choices.synchronizer[i, v]]
            cut = choices.axis[i, v]
            full, longer = choices.flat_length[i, v], 0
            if cut >= 0:
                full = variables[v].dims[cut] // count
                longer = variables[v].dims[cut] - full * count
            for row in range(start, stop):
                shards.variable[row] = v
                shards.method[row], shards.option[row] = chosen.method, chosen.option
                shards.server[row], shards.group[row] = -1, -1
                shards.length[row] = full + (row - start < longer)
            if cut < 0:
                shards.length[stop - 1] = variables[v].elements - full * (count - 1)


@njit(nogil=True, _nrt=False)
def _fill_pinned(shards: ShardColumns, row: int, v: int, pinned: Record) -> None:
    shards.variable[row], shards.length[row] = v, pinned.length
    shards.method[row], shards.option[row] = pinned.method, pinned.option
    shards.server[row], shards.group[row] = pinned.server, pinned.group


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
