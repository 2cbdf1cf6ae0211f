"""Several recorded iterations as one: what runs in any of them, how often, and in which order.

A model whose forward pass depends on its input runs other modules from one batch to the next.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from autosync.trials.live.step_tape import Call, Tape

CallKey = tuple[str, int]
"""A module's name, and which of its calls in an iteration."""

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class TapeUnion:
    """keys, calls: what ran in any iteration, in the order of the forward pass; a call is as in the
    last iteration that ran it, with the variables of all and the mean of the rows.
    frequency: of each, the share of the iterations that ran it.
    backward_order: places in `calls`. gradient_order: all variables, by their mean place.
    reached: of each variable that had a gradient, the share of the iterations in which it had one.
    """

    keys: list[CallKey]
    calls: list[Call]
    frequency: list[float]
    backward_order: list[int]
    gradient_order: list[int]
    reached: dict[int, float]


def unite_tapes(tapes: Sequence[Tape]) -> TapeUnion:
    """tapes: with all variables in `ready`, those without a gradient last (`add_unused`)."""
    adopt_orphans(tapes)
    keyed = [call_keys(tape) for tape in tapes]
    keys = merged_order(keyed)
    calls: dict[CallKey, Call] = {}
    rows: Counter[CallKey] = Counter()
    for names, tape in zip(keyed, tapes, strict=True):
        for key, call in zip(names, tape.calls, strict=True):
            earlier = calls[key].variables if key in calls else ()
            rows[key] += call.rows
            mean_rows = -(-rows[key] // len(tapes))
            variables = tuple(dict.fromkeys(earlier + call.variables))
            calls[key] = replace(call, variables=variables, rows=mean_rows)
    times = Counter(key for names in keyed for key in names)
    place = {key: i for i, key in enumerate(keys)}
    finishing = merged_order(
        [
            [names[index] for index in finish_order(tape)]
            for names, tape in zip(keyed, tapes, strict=True)
        ]
    )
    gradients = Counter(variable for tape in tapes for variable in tape.gradients)
    return TapeUnion(
        keys=keys,
        calls=[calls[key] for key in keys],
        frequency=[times[key] / len(tapes) for key in keys],
        backward_order=[place[key] for key in finishing],
        gradient_order=mean_order([list(tape.ready) for tape in tapes]),
        reached={variable: count / len(tapes) for variable, count in gradients.items()},
    )


def call_keys(tape: Tape) -> list[CallKey]:
    counts: Counter[str] = Counter()
    keys = []
    for call in tape.calls:
        keys.append((call.name, counts[call.name]))
        counts[call.name] += 1
    return keys


def merged_order(sequences: Sequence[Sequence[K]]) -> list[K]:
    """All keys: as in the last sequence, and what others have besides, right after what comes
    before it there."""
    union = list(sequences[-1])
    for sequence in reversed(sequences[:-1]):
        known, place = set(union), 0
        for key in sequence:
            if key in known:
                place = union.index(key) + 1
            else:
                union.insert(place, key)
                place += 1
    return union


def mean_order(orders: Sequence[Sequence[int]]) -> list[int]:
    """By mean place in all orders of the same numbers; ties as in the last."""
    places: Counter[int] = Counter()
    for order in orders:
        places.update({number: place for place, number in enumerate(order)})
    return sorted(orders[-1], key=places.__getitem__)


def adopt_orphans(tapes: Sequence[Tape]) -> None:
    """A variable that is read without a call of its module (an attention's output projection)
    goes to the call that owns the variable whose gradient is ready next, or else before."""
    owned = {v for tape in tapes for call in tape.calls for v in call.variables}
    for tape in tapes:
        owner: dict[int, int] = {}
        for index, call in enumerate(tape.calls):
            for variable in call.variables:
                owner.setdefault(variable, index)
        order = list(tape.ready)
        for place, variable in enumerate(order):
            if variable not in owned:
                near = [*order[place + 1 :], *reversed(order[:place])]
                call = tape.calls[next(owner[v] for v in near if v in owner)]
                call.variables = (*call.variables, variable)


def finish_order(tape: Tape) -> list[int]:
    """Calls in the order their backward ends.

    A variable's gradient is complete with its first call's backward (backward runs the calls in
    reverse); calls that complete nothing end with the call after them.
    """
    place = {variable: i for i, variable in enumerate(tape.ready)}
    owner: dict[int, int] = {}
    for index, call in enumerate(tape.calls):
        for variable in call.variables:
            owner.setdefault(variable, index)
    ends: dict[int, int] = {}
    last = -1
    for index in reversed(range(len(tape.calls))):
        own = [place[v] for v in tape.calls[index].variables if owner[v] == index]
        ends[index] = last = max(own, default=last)
    return sorted(ends, key=lambda index: (ends[index], -index))


def last_consumers(calls: Sequence[Call], order: Sequence[int]) -> dict[int, int]:
    """Of each variable that is read, the call that comes last in `order`, places in `calls`."""
    found: dict[int, int] = {}
    for index in order:
        found.update(dict.fromkeys(calls[index].variables, index))
    return found
