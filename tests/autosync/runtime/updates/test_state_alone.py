"""`optimizer.state_dict()` on one rank alone, where it is a collective: named while it waits."""

import warnings
from datetime import timedelta
from unittest.mock import patch

import pytest
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from autosync.runtime.attachment import Attachment, attach
from autosync.runtime.transport import agreement
from autosync.runtime.transport.failures import SynchronizationFailed
from autosync.strategy import Schedule
from tests.autosync.runtime.cases import Case, loss_of, make_model, make_optimizer, plan
from tests.autosync.runtime.ranks import Ranks

OVERLAP = Schedule("priority", slice_bytes=100, overlap_forward=True)
SPLIT = (
    Case(method="zero", schedule=OVERLAP),
    Case(method="ps"),
    Case(method="mixed", groups=4, schedule=OVERLAP),
)
WHOLE = (Case(), Case(method="rs", schedule=OVERLAP))


SHORT = patch.object(agreement, "CALL_SECONDS", 0.01)


def trained(case: Case, rank: int, world: int, timeout_seconds: float = 60.0) -> Attachment:
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
    assert isinstance(group, dist.ProcessGroup)
    model = make_model(case.model)
    names = tuple(name for name, _ in model.named_parameters())
    optimizer = make_optimizer(case.optimizer, model)
    made = attach(model, optimizer, plan(case, model, world), names, group)
    loss_of(model, 0, rank).backward()
    optimizer.step()
    return made


def late(rank: int, world: int, cases: tuple[Case, ...]) -> list[str]:
    """Rank 1 calls it only when rank 0 has said that it waits."""
    store = dist.distributed_c10d._get_default_store()
    found = []
    for number, case in enumerate(cases):
        made = trained(case, rank, world)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if rank == 1:
                store.wait([f"said/{number}"])
                state = made.optimizers[0].state_dict()
            else:
                state = said(made, store, f"said/{number}")
        assert len(state["state"]) == 5
        found += [str(warning.message) for warning in caught]
        made.detach(keep_state=False)
    return found


def said(made: Attachment, store: Store, key: str) -> dict[str, object]:
    show = warnings.showwarning

    def tell(*arguments: object, **named: object) -> None:
        store.set(key, "")
        show(*arguments, **named)  # type: ignore[arg-type]

    warnings.showwarning = tell
    try:
        with SHORT:
            return made.optimizers[0].state_dict()
    finally:
        warnings.showwarning = show


def test_a_rank_that_waits_says_for_whom(pair: Ranks) -> None:
    here, there = pair.run(late, SPLIT)
    assert len(here) == len(SPLIT)
    for words in here:
        assert "rank 0 waits in optimizer.state_dict(), which rank 1 has not called" in words
        assert "call it on every rank" in words
    assert there == []


def alone(rank: int, world: int, case: Case) -> str:
    """Rank 1 never calls it."""
    made = trained(case, rank, world, 2.0)
    store = dist.distributed_c10d._get_default_store()
    key = f"given up/{case.method}"
    if rank == 1:
        store.wait([key])
        made.detach(keep_state=False)
        return ""
    with SHORT, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(SynchronizationFailed) as caught:
            made.optimizers[0].state_dict()
    store.set(key, "")
    made.detach()
    return str(caught.value)


def test_what_never_comes_is_named_at_the_timeout(pair: Ranks) -> None:
    words, _ = pair.run(alone, SPLIT[0])
    assert "optimizer.state_dict(), which rank 1 has not called" in words


def on_one(rank: int, world: int, cases: tuple[Case, ...]) -> int:
    """Where every rank holds everything, one may save alone."""
    saved = 0
    for case in cases:
        made = trained(case, rank, world)
        if rank == 0:
            saved += len(made.optimizers[0].state_dict()["state"])
        dist.barrier()
        made.detach()
    return saved


def test_one_rank_may_save_what_it_holds(pair: Ranks) -> None:
    assert pair.run(on_one, WHOLE) == [10, 0]
