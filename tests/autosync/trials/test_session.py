"""A trial's plan and what works beside it come off a model, whatever has failed."""

import pytest

from autosync.errors import DeviceMemoryExceeded
from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.document import Offload
from autosync.extensions.seams import attach_beside
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
