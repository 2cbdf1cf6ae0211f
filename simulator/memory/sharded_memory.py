"""What torch's `fully_shard` holds at each moment beside activations, as torch 2.13 allocates it
(torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py).

A rank keeps its parts of values, gradients and optimizer state. A unit's values come into a flat
buffer and are copied out of it; the buffer goes when the next unit's values have come. Its
gradients are copied into a flat buffer and go; that buffer goes when the next unit's are reduced.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population
from autosync.simulator.memory.live_tensors import ActivationCurve
from autosync.torch_engine import FullyShard

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ShardedUnit:
    """A unit of a sharded strategy; bytes of the fullest rank.

    size_bytes: of its values. part_bytes: of what a rank keeps of them, rounded up as torch does.
    gathered_bytes: of the buffer in which they come. forward: the moment at which its forward pass
    begins. backward, done: the moments at which its backward pass begins and ends.
    """

    size_bytes: float
    part_bytes: float
    gathered_bytes: float
    keeps_values: bool
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
    for number in np.unique(group):
        held = variable[group == number].astype(np.int64)
        unit = engine.unit_of(domain.graph.variables[int(held[0])].name)
        is_root = unit == len(engine.units)
        made = curve.made_at[np.isin(curve.made_of, held)]
        end = 2 * operations - 1
        part = float(parts[held].sum())
        found.append(
            ShardedUnit(
                size_bytes=float(table.size_bytes[held].sum()),
                part_bytes=part,
                gathered_bytes=part * engine.shard_ranks,
                keeps_values=engine.keeps_values(unit),
                forward=0 if is_root else int(table.first_use[held].min()),
                backward=int(made.min()) if len(made) else end,
                done=end if is_root or not len(made) else int(made.max()),
            )
        )
    return sorted(found, key=lambda unit: unit.forward)


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """during f64[moments]: beside activations and whole gradients, while a moment computes.
    passing f64[moments]: the most that is held at its beginning or its end instead. freed
    f64[moments]: of whole gradients that are gone by then. parts: bytes of all parts of one kind.
    """

    during: F64
    passing: F64
    freed: F64
    parts: float


def held_bytes(units: list[ShardedUnit], moments: int, copied: bool) -> HeldBytes:
    """copied: the backend gathers into, and reduces in, a copy of its own."""
    during, passing, freed = np.zeros((3, moments))
    _forward(units, during, passing, copied)
    _backward(units, during, passing, freed, copied)
    return HeldBytes(during, passing, freed, sum(unit.part_bytes for unit in units))


def _forward(units: list[ShardedUnit], during: F64, passing: F64, copied: bool) -> None:
    end = len(during) // 2
    kept, buffer = 0.0, 0.0
    for place, unit in enumerate(units):
        following = units[place + 1] if place + 1 < len(units) else None
        copies = unit.gathered_bytes if copied else 0.0
        _raise(passing, unit.forward, kept + buffer + unit.gathered_bytes + copies)
        buffer = unit.gathered_bytes
        ahead = following.gathered_bytes if following and not copied else 0.0
        span = slice(unit.forward, following.forward if following else end)
        during[span] += kept + unit.size_bytes + buffer + ahead
        _raise(passing, unit.forward, kept + unit.size_bytes + buffer)
        kept += unit.size_bytes if unit.keeps_values else 0.0


def _backward(
    units: list[ShardedUnit], during: F64, passing: F64, freed: F64, copied: bool
) -> None:
    order = sorted(units, key=lambda unit: (unit.done, unit.backward))
    kept = sum(unit.size_bytes for unit in units if unit.keeps_values)
    begin, reducing, parts = len(during) // 2, 0.0, 0.0
    for unit, following in pairwise([*order, None]):
        assert unit is not None
        own = 0.0 if unit.keeps_values else unit.size_bytes
        copies = 1.0 if copied else 0.0
        gathered = 0.0 if unit.keeps_values else unit.gathered_bytes
        _raise(passing, begin, kept + gathered * (1.0 + copies) + reducing + parts)
        ahead = following.gathered_bytes if following and not following.keeps_values else 0.0
        _raise(passing, begin, kept + own + ahead * (1.0 + copies) + reducing + parts)
        during[begin : unit.done + 1] += kept + own + ahead + reducing + parts
        kept -= unit.size_bytes if unit.keeps_values else 0.0
        # the gradients themselves count until `done`: their buffer and its copy
        reducing = unit.gathered_bytes
        taken = max(unit.size_bytes, copies * reducing + unit.part_bytes) - unit.size_bytes
        _raise(passing, unit.done, kept + ahead + reducing + taken + parts)
        parts += unit.part_bytes
        freed[unit.done + 1 :] += unit.size_bytes
        begin = max(begin, unit.done + 1)


def _raise(passing: F64, moment: int, size_bytes: float) -> None:
    passing[min(moment, len(passing) - 1)] = max(passing[min(moment, len(passing) - 1)], size_bytes)
