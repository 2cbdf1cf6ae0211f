"""A trial's plan and what works beside it come off a model, whatever has failed."""

from types import SimpleNamespace
from typing import Any

import pytest

from autosync.errors import DeviceMemoryExceeded
from autosync.extensions import seams
from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.optimizer_states import SwappedStates
from autosync.extensions.seams import attach_beside
from autosync.trials import session
from autosync.trials.session import TrialAttachment, _add_beside
from tests.autosync.extensions.offload.swapped_training import ROOMY, batch_of, make, train_step


@pytest.mark.parametrize("end", ["detach", "abandon"])
def test_a_plan_detaches_although_swapped_state_does_not_fit(end: str) -> None:
    model, optimizer = make("wide")
    ended: list[str] = []
    attached = TrialAttachment(
        model, lambda: ended.append("detach"), lambda: ended.append("abandon")
    )
    with Arena(ROOMY) as arena:
        swap = Offload(ROOMY, optimizer_state=True)
        (swapper,) = attach_beside((swap,), model, [optimizer])
        _add_beside(attached, swapper, keep_state=True)
        train_step(model, optimizer, batch_of(0))  # the next pass is recorded: state is away
        arena.budget_bytes = arena.allocated_bytes()
        with pytest.raises(DeviceMemoryExceeded):
            getattr(attached, end)()
        assert ended == [end]


def test_a_plan_detaches_where_the_host_has_no_room_for_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What lies beside the plan cannot be attached: the next plan finds a plain model."""
    model, optimizer = make("wide")
    train_step(model, optimizer, batch_of(0))
    hooks = len(model._forward_pre_hooks), len(model._forward_hooks)
    ended: list[str] = []
    attached = TrialAttachment(
        model, lambda: ended.append("detach"), lambda: ended.append("abandon")
    )

    def full(*given: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(session, "_attach", lambda *given: attached)
    monkeypatch.setattr(session, "knobs_without_effect", lambda *given: None)
    monkeypatch.setattr(SwappedStates, "put_away", full)
    swap = Offload(ROOMY, optimizer_state=True)
    bundle: Any = SimpleNamespace(plan=None, strategy=SimpleNamespace(extensions=(swap,)))
    with Arena(ROOMY), pytest.raises(RuntimeError, match="out of memory"):
        session.attach(model, optimizer, bundle, 1.0, session.ReusedGroups())
    assert ended == ["abandon"]
    assert (len(model._forward_pre_hooks), len(model._forward_hooks)) == hooks


def test_nothing_stays_beside_a_plan_where_one_of_several_cannot_be_attached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, optimizer = make("wide")
    ended: list[str] = []

    def fits(*given: object) -> SimpleNamespace:
        return SimpleNamespace(remove=lambda: ended.append("removed"))

    def full(*given: object) -> None:
        raise MemoryError("full")

    found = [(None, SimpleNamespace(attach=each)) for each in (fits, full)]
    monkeypatch.setattr(seams, "_modules", lambda *given: found)
    with pytest.raises(MemoryError):
        attach_beside((), model, [optimizer])
    assert ended == ["removed"]
