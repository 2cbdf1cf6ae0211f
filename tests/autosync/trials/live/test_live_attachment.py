"""A trial's plan and what it swaps come off a running job's model, whatever has failed."""

from datetime import timedelta

import pytest

from autosync.errors import DeviceMemoryExceeded
from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.document import Offload
from autosync.trials.live.control_group import ControlGroup
from autosync.trials.live.live_attachment import LiveAttachment, _add_swapping
from autosync.trials.live.live_job import LiveJob
from autosync.trials.live.snapshot import take_snapshot
from tests.autosync.extensions.offload.swapped_training import ROOMY, batch_of, make, train_step


@pytest.mark.parametrize("end", ["detach", "abandon"])
def test_where_values_have_no_room_to_come_back_the_plan_comes_off_all_the_same(end: str) -> None:
    model, optimizer = make("broad", by_sgd=True)
    ended: list[str] = []
    attached = LiveAttachment(
        model,
        flush=lambda: None,
        detach=lambda: ended.append("detach"),
        abandon=lambda: ended.append("abandon"),
    )
    control: ControlGroup = None  # type: ignore[assignment]  # nobody is asked
    with Arena(ROOMY) as arena:
        job = LiveJob(
            train_step, model, optimizer, take_snapshot(model, []), control, timedelta(seconds=1)
        )
        _add_swapping(attached, job, Offload(ROOMY, values=True))
        model(batch_of(0))  # a pass on demand: values are away
        arena.budget_bytes = arena.allocated_bytes()
        with pytest.raises(DeviceMemoryExceeded):
            getattr(attached, end)()
        assert ended == [end]
