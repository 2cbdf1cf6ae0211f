"""What torch's `fully_shard` holds at each moment beside activations, as torch 2.13 allocates it
(torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py).

A rank keeps its parts of values, gradients and optimizer state. A unit's values come into a flat
buffer and are copied out of it; the buffer goes when the next unit's values have come. Its
gradients are copied into a flat buffer, in the type in which they are reduced, and go; that buffer
goes when the next unit's are reduced.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population
from autosync.simulator.memory.live_tensors import ActivationCurve
from autosync.strategy import EXACT
from autosync.torch_engine import FullyShard

F64 = NDArray[np.float64]
Batch = Literal["only", "before", "last"]
"""Of an update: its only one, or one of several."""


@dataclass(frozen=True, slots=True)
class ShardedUnit:
    """A unit of a sharded strategy; bytes of the fullest rank.

    size_bytes: of its values, and as much of its gradients, in the type of its computation.
    part_bytes: of what a rank keeps of them, rounded up as torch does. gathered_bytes: of the
    buffer in which they come. reduced_bytes: of that in which its gradients are reduced.
    resharded_bytes: of the part of a smaller group that a rank holds from its forward to its
    backward pass. forward: the moment at which its forward pass begins. backward, done: the
    moments at which its backward pass begins and ends.
    """

    size_bytes: float
    part_bytes: float
    gathered_bytes: float
    reduced_bytes: float
    keeps_values: bool
    resharded_bytes: float
    forward: int
    backward: int
    done: int


def units_of(
    domain: Domain,
    curve: ActivationCurve,
    population: Population,
    index: int,
    engine: FullyShard,
) -> list[ShardedUnit]:
    """In the order of their forward passes."""
    table, operations = domain.variables, len(domain.graph.operations)
    rows = slice(int(population.first[index]), int(population.first[index + 1]))
    group, variable = population.group[rows], population.variable[rows]
    rests = table.size_bytes // table.dims[:, 0]
    parts = -(-table.dims[:, 0] // engine.shard_ranks) * rests
    found = []
    halved = population.options[population.option[rows][0]].encoding != EXACT  # as bf16 or fp16
    half = np.minimum(table.item_bytes, 2) / table.item_bytes
    reduced = half if halved else 1.0
    computed = half if engine.param_dtype else np.ones(len(half))
    reduced_parts = parts * reduced
    for number in np.unique(group):
        held = variable[group == number].astype(np.int64)
        unit = engine.unit_of(domain.graph.variables[int(held[0])].name)
        is_root = unit == len(engine.units)
        made = curve.made_at[np.isin(curve.made_of, held)]
        end = 2 * operations - 1
        part, again_over = float(parts[held].sum()), engine.gathers_again_over(unit)
        gathered_bytes = float((parts * computed)[held].sum()) * engine.shard_ranks
        in_part = again_over not in (0, engine.shard_ranks)
        found.append(
            ShardedUnit(
                size_bytes=float((table.size_bytes * computed)[held].sum()),
                part_bytes=part,
                gathered_bytes=gathered_bytes,
                reduced_bytes=float(reduced_parts[held].sum()) * engine.shard_ranks,
                keeps_values=not again_over,
                resharded_bytes=gathered_bytes / again_over if in_part else 0.0,
                forward=0 if is_root else int(table.first_use[held].min()),
                backward=int(made.min()) if len(made) else end,
                done=end if is_root or not len(made) else int(made.max()),
            )
        )
    return sorted(found, key=lambda unit: unit.forward)


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """during f64[moments]: beside activations and a batch's own gradients, while a moment computes.
    passing f64[moments]: the most that is held at its beginning or its end instead. freed
    f64[moments]: of these gradients, what is gone by then. parts: bytes of all parts of one kind.
    """

    during: F64
    passing: F64
    freed: F64
    parts: float


def held_bytes(
    units: list[ShardedUnit], moments: int, copied: bool, engine: FullyShard, batch: Batch = "only"
) -> HeldBytes:
    """copied: the backend gathers into, and reduces in, a copy of its own. batch: of an update, in
    a steady state. Gradients of the batches before it are held as parts, or whole in the type in
    which they are reduced."""
    during, passing, freed = np.zeros((3, moments))
    whole, values = engine.kept_between_batches != "", engine.kept_between_batches == "values"
    several, parts = batch != "only", sum(unit.part_bytes for unit in units)
    if several and values:
        _forward_from_kept(units, during)
    else:
        _forward(units, during, passing, copied, engine.forward_prefetch)
    _backward(
        units,
        during,
        passing,
        freed,
        copied,
        engine.backward_prefetch,
        reduces=batch != "before" or not whole,
        reshards=batch != "before" or not values,
        makes_parts=not several or whole,
    )
    if several:
        before = np.full(moments, sum(unit.reduced_bytes for unit in units) if whole else parts)
        if whole and batch == "last":
            before *= 1.0 - freed / sum(unit.size_bytes for unit in units)
        during += before
        passing += before
    return HeldBytes(during, passing, freed, parts)


def _forward(
    units: list[ShardedUnit], during: F64, passing: F64, copied: bool, prefetch: int
) -> None:
    """prefetch: units whose values come while one computes; where they are copied, in host memory,
    torch asks for none by itself, and a plan that asks for more than one has them all."""
    end = len(during) // 2
    if copied and prefetch == 1:
        prefetch = 0
    kept, buffer = 0.0, 0.0
    for place, unit in enumerate(units):
        following = units[place + 1] if place + 1 < len(units) else None
        copies = unit.gathered_bytes if copied else 0.0
        _raise(passing, unit.forward, kept + buffer + unit.gathered_bytes + copies)
        buffer = unit.gathered_bytes
        ahead = sum(each.gathered_bytes for each in units[place + 1 : place + 1 + prefetch])
        span = slice(unit.forward, following.forward if following else end)
        during[span] += kept + unit.size_bytes + buffer + ahead
        _raise(passing, unit.forward, kept + unit.size_bytes + buffer)
        if unit.resharded_bytes:  # copied while the values are still there
            held = kept + unit.size_bytes + buffer + ahead + unit.resharded_bytes
            _raise(passing, max(span.start, span.stop - 1), held)
        kept += unit.size_bytes if unit.keeps_values else unit.resharded_bytes


def _forward_from_kept(units: list[ShardedUnit], during: F64) -> None:
    """Where the batch before has kept all values."""
    held, end = sum(unit.size_bytes for unit in units), len(during) // 2
    for place, unit in enumerate(units):
        following = units[place + 1].forward if place + 1 < len(units) else end
        during[unit.forward : following] += held
        held -= 0.0 if unit.keeps_values else unit.size_bytes - unit.resharded_bytes


def _backward(
    units: list[ShardedUnit],
    during: F64,
    passing: F64,
    freed: F64,
    copied: bool,
    prefetch: int,
    reduces: bool,
    reshards: bool,
    makes_parts: bool,
) -> None:
    """reduces: the batch reduces its gradients. reshards: units give their values back.
    makes_parts: what is reduced is new, and not added to parts that are there."""
    order = sorted(units, key=lambda unit: (unit.done, unit.backward))
    kept = sum(unit.size_bytes if unit.keeps_values else unit.resharded_bytes for unit in units)
    begin, reducing, parts = len(during) // 2, 0.0, 0.0
    for place, unit in enumerate(order):
        own = 0.0 if unit.keeps_values else unit.size_bytes
        copies = 1.0 if copied else 0.0
        gathered = 0.0 if unit.keeps_values else unit.gathered_bytes
        _raise(passing, begin, kept + gathered * (1.0 + copies) + reducing + parts)
        kept -= unit.resharded_bytes
        asked = order[place + 1 : place + 1 + prefetch]
        ahead = sum(each.gathered_bytes for each in asked if not each.keeps_values)
        _raise(passing, begin, kept + own + ahead * (1.0 + copies) + reducing + parts)
        during[begin : unit.done + 1] += kept + own + ahead + reducing + parts
        if not reshards:
            kept += own
        elif unit.keeps_values:
            kept -= unit.size_bytes
        if reduces:
            # the gradients themselves count until `done`: their buffer and its copy
            reducing = unit.reduced_bytes
            taken = max(unit.size_bytes, copies * reducing + unit.part_bytes) - unit.size_bytes
            _raise(passing, unit.done, kept + ahead + reducing + taken + parts)
            parts += unit.part_bytes if makes_parts else 0.0
        freed[unit.done + 1 :] += unit.size_bytes
        begin = max(begin, unit.done + 1)


def _raise(passing: F64, moment: int, size_bytes: float) -> None:
    passing[min(moment, len(passing) - 1)] = max(passing[min(moment, len(passing) - 1)], size_bytes)
