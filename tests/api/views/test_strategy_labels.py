"""Strategies in chips, and a tuning in a sentence."""

from dataclasses import replace

import pytest
from sqlalchemy import update

from autosync.api.db import Database
from autosync.api.db.tables import StrategyRow
from autosync.api.views import reports
from autosync.api.views.dashboard import strategy_labels as module
from autosync.api.views.dashboard.strategy_labels import label_of, strategy_labels
from autosync.extensions.offload.document import Offload
from autosync.extensions.staleness.document import Staleness
from autosync.search.designs.known_designs import ps_load_balanced
from autosync.search.loop.outcome import is_ddp
from autosync.strategy import Schedule
from tests.api.sample import Shown, candidates, finished
from tests.domains import domain_of


def test_chips_say_what_differs_from_ddp() -> None:
    known = [candidate.strategy for candidate in candidates(domain_of(), 12)]
    ddp = next(strategy for strategy in known if is_ddp(strategy))
    assert label_of(ddp).name == "DDP"
    assert not any(chip.differs for chip in label_of(ddp).chips)
    plain = next(each for each in known if label_of(each).name == "all-reduce")
    changed = replace(plain, schedule=Schedule("priority", 2 << 20, overlap_forward=True))
    label = label_of(changed)
    assert label.name == "all-reduce, front layers first"
    assert [chip.text for chip in label.chips if chip.differs] == [
        "front layers first",
        "slices of 2 MiB",
        "continues in next forward pass",
    ]
    assert label.mark != label_of(plain).mark


def test_a_chip_says_what_is_late_and_by_how_much() -> None:
    domain = domain_of()
    late = label_of(ps_load_balanced(domain).carrying(Staleness(2)))
    (chip,) = (chip for chip in late.chips if chip.kind == "staleness")
    assert chip.text == "values at most 2 iterations old"
    assert chip.differs


def test_a_swapped_ddp_is_not_called_ddp_alone() -> None:
    known = [candidate.strategy for candidate in candidates(domain_of(), 12)]
    ddp = next(strategy for strategy in known if is_ddp(strategy))
    label = label_of(ddp.carrying(Offload(2_000_000_000)))
    assert label.name == "DDP, activations swapped, 2 GB"
    assert label.mark
    assert [chip.text for chip in label.chips if chip.differs] == ["activations swapped, 2 GB"]
    label = label_of(ddp.carrying(Offload(2_000_000_000, optimizer_state=True)))
    (chip,) = (chip.text for chip in label.chips if chip.differs)
    assert chip == "activations and optimizer state swapped, 2 GB"


def test_documents_are_read_once(shown_sqlite: Shown) -> None:
    with shown_sqlite.database.reading() as session:
        ranked = reports.ranked_strategies(session, shown_sqlite.first).items
        ids = [row.strategy_id for row in ranked]
        first = strategy_labels(session, ids)
        again = strategy_labels(session, [*ids, "unknown"])
    assert first.keys() == again.keys() == set(ids)
    assert all(first[each] is again[each] for each in ids)


def test_a_document_that_is_refused_keeps_nobody_from_the_others(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an earlier version stored it, which checked less."""
    monkeypatch.setattr(module, "_KNOWN", {})
    tuning_id = finished(sqlite)
    with sqlite.writing() as session:
        refused, *others = (
            row.strategy_id for row in reports.ranked_strategies(session, tuning_id).items
        )
        of_it = StrategyRow.strategy_id == refused
        session.execute(update(StrategyRow).where(of_it).values(document="{}"))
    with sqlite.reading() as session:
        labels = strategy_labels(session, [refused, *others])
    assert (labels[refused].name, labels[refused].mark) == ("unreadable", refused[:6])
    assert "unreadable" not in {labels[each].name for each in others}
