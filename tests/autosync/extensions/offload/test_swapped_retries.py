"""Which designs come back with swapping, by what their trials said."""

from typing import get_args

import pytest

from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.proposals import PROPOSER
from autosync.search.designs.design_table import hand_designed
from autosync.search.loop.tuning_store import Candidate, MemoryStore, Proposal
from autosync.search.space import Space
from autosync.simulator.analytic import AnalyticSimulator
from autosync.strategy import Strategy
from autosync.trials.contract import ErrorKind, TrialError, TrialResult
from tests.search.loop.test_ddp_out_of_memory import in_arenas, with_large_variables

DOMAIN = in_arenas(1.0, with_large_variables())


def tried(store: MemoryStore, name: str, strategy: Strategy, kind: ErrorKind | None) -> None:
    """kind: of its error; None where it ran."""
    proposal = Proposal(name, "search", 0, Candidate(strategy, 1.0, "analytic", name))
    error = None if kind is None else TrialError(kind, "so it is")
    seconds = 1.0 if kind is None else None
    store.propose([proposal])
    store.record(TrialResult(name, (), seconds, 0.0, error, "a table", 1.0, 1.0))


def retried(store: MemoryStore) -> list[Candidate]:
    return PROPOSER.retries(DOMAIN, Space(), AnalyticSimulator(), store)


@pytest.mark.parametrize("kind", [None, *get_args(ErrorKind)])
def test_another_form_is_tried_only_where_one_had_no_room(kind: ErrorKind | None) -> None:
    store = MemoryStore()
    name, plain = hand_designed(DOMAIN, Space())[0]
    tried(store, name, plain, "out_of_memory")
    (first,) = retried(store)
    assert first.strategy.extension(Offload) is not None
    tried(store, first.origin, first.strategy, kind)
    others = retried(store)
    assert bool(others) is (kind in ("out_of_memory", "over_budget"))
