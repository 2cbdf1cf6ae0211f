"""Strategies in a few words: a short name, and chips for what differs from torch's DDP."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.tables import StrategyRow
from autosync.documents import from_json
from autosync.errors import AutosyncError
from autosync.extensions.registry import verification_of
from autosync.search.loop.outcome import is_ddp
from autosync.strategy import Strategy
from autosync.strategy_description import (
    batch_shares,
    bucket_sizes,
    engine_name,
    hook_name,
    method,
    script_lines,
    sharding_details,
)
from autosync.units import MIB

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


def remembered(
    answers: dict[Key, Answer], key: Key, make: Callable[[], Answer], most: int = 1000
) -> Answer:
    """The answer under `key`, made if it is not there; of `most` the oldest goes.

    Two threads may make one answer twice, which changes nothing.
    """
    known = answers.get(key)
    if known is None:
        known = make()
        while len(answers) >= most:
            answers.pop(next(iter(answers)), None)
        answers[key] = known
    return known


ORDERS = {
    "fifo": "as gradients become ready",
    "priority": "front layers first",
    "explicit": "explicit order",
}
BUNDLE_FILE = "best.json"
"""As the page of a tuning has its answer downloaded."""
IN_NAME = 2
"""Methods that a short name tells."""


@dataclass(frozen=True, slots=True)
class Chip:
    """kind: engine, method, cut, order, slices, overlap, gather, shares or the key of an
    extension. differs: from torch's DDP."""

    kind: str
    text: str
    differs: bool = True


@dataclass(frozen=True, slots=True)
class StrategyLabel:
    """mark: the beginning of its id, which tells strategies of one name apart. lines: of a script
    that trains by it; none where it is not known whole."""

    name: str
    mark: str
    chips: tuple[Chip, ...]
    lines: tuple[str, ...] = ()

    @property
    def whole(self) -> str:
        return f"{self.name} {self.mark}".strip()


_KNOWN: dict[str, StrategyLabel] = {}


def strategy_labels(session: Session, strategy_ids: Iterable[str]) -> dict[str, StrategyLabel]:
    """By id. Only documents that were not read before are parsed."""
    wanted = dict.fromkeys(strategy_ids)
    new = [each for each in wanted if each not in _KNOWN]
    query = select(StrategyRow.strategy_id, StrategyRow.document)
    found = {each: known for each in wanted if (known := _KNOWN.get(each)) is not None}
    for key, document in session.execute(query.where(StrategyRow.strategy_id.in_(new))):
        found[key] = remembered(_KNOWN, key, partial(_of_document, key, document), 20_000)
    return found


def _of_document(strategy_id: str, document: str) -> StrategyLabel:
    """Also of one that an earlier AutoSync stored and this one refuses: others stand beside it."""
    try:
        strategy = from_json(Strategy, document)
        return replace(label_of(strategy), lines=tuple(script_lines(strategy, BUNDLE_FILE)))
    except AutosyncError:
        why = Chip("engine", "this version of AutoSync refuses its document")
        return StrategyLabel("unreadable", strategy_id[:6], (why,))


def label_of(strategy: Strategy) -> StrategyLabel:
    groups: dict[str, set[int]] = {}
    variables: Counter[str] = Counter()
    for choice in strategy.choices:
        for shard in choice.shards:
            groups.setdefault(method(shard), set()).add(shard.group)
        variables.update({method(shard) for shard in choice.shards})
    if strategy.engine is not None:
        units = Chip("method", f"sharded × {sum(len(members) for members in groups.values())}")
        engine = Chip("engine", "torch's fully_shard")
        chosen = (Chip("engine", each) for each in sharding_details(strategy, strategy.engine))
        return StrategyLabel(engine_name(strategy), strategy.id[:6], (engine, units, *chosen))
    if strategy.schedule.order == "ddp":
        buckets = sum(len(members) for members in groups.values())
        messages = Chip("method", f"all-reduce × {buckets}", False)
        if is_ddp(strategy):
            return StrategyLabel("DDP", "", (messages,))
        sized = [sizes] if (sizes := bucket_sizes(strategy)) else []
        hook = [f"{name} hook"] if (name := hook_name(strategy)) else []
        hooks, carried = [Chip("engine", each) for each in (*sized, *hook)], _extensions(strategy)
        names = ["DDP", *sized, *hook, *(chip.text for chip in carried)]
        return StrategyLabel(", ".join(names), strategy.id[:6], (*hooks, messages, *carried))
    methods = [name for name, _ in variables.most_common()]
    return StrategyLabel(
        _short_name(methods, strategy),
        strategy.id[:6],
        (*_methods(methods, groups), *_cuts(strategy), *_schedule(strategy), *_rest(strategy)),
    )


def _short_name(methods: list[str], strategy: Strategy) -> str:
    names = " + ".join(methods[:IN_NAME]) + (" + others" if len(methods) > IN_NAME else "")
    order = strategy.schedule.order
    return names if order == "fifo" else f"{names}, {ORDERS[order]}"


def _methods(methods: list[str], groups: dict[str, set[int]]) -> list[Chip]:
    return [
        Chip("method", f"{name} × {len(groups[name])}", name != "all-reduce") for name in methods
    ]


def _cuts(strategy: Strategy) -> list[Chip]:
    cut = sum(len(choice.shards) > 1 for choice in strategy.choices)
    return [Chip("cut", f"{cut} variable{'s' if cut > 1 else ''} cut")] if cut else []


def _schedule(strategy: Strategy) -> list[Chip]:
    schedule = strategy.schedule
    chips = [Chip("order", ORDERS[schedule.order], schedule.order != "fifo")]
    if schedule.slice_bytes:
        chips.append(Chip("slices", f"slices of {schedule.slice_bytes / MIB:.3g} MiB"))
    if schedule.overlap_forward:
        chips.append(Chip("overlap", "continues in next forward pass"))
    if schedule.gather == "when_idle":
        chips.append(Chip("gather", "all-gathers wait for idle links"))
    return chips


def _rest(strategy: Strategy) -> list[Chip]:
    shares = batch_shares(strategy)
    chips = [Chip("shares", f"shares {shares}")] if shares else []
    return chips + _extensions(strategy)


def _extensions(strategy: Strategy) -> list[Chip]:
    return [
        Chip(entry.key, verification_of(entry.key).label(strategy)) for entry in strategy.extensions
    ]
