"""What a step changes is put back, also where it failed half way."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from autosync.extensions.offload.arena import Arena
from autosync.trials.live.snapshot import take_snapshot


def test_a_scaler_whose_step_failed_half_way_begins_anew() -> None:
    """It remembers, beside its state, which optimizer's gradients it has divided already."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=64.0)
    before = take_snapshot(model, [optimizer], [scaler])
    for _ in range(2):
        scaler.scale(model(torch.ones(1, 3)).sum()).backward()
        scaler.unscale_(optimizer)  # torch refuses a second time before the next update()
        before.restore()
    assert scaler.get_scale() == 64.0


def test_several_optimizers_are_put_back() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    optimizers = [
        torch.optim.AdamW(model[0].parameters(), lr=0.1),
        torch.optim.SGD(model[1].parameters(), lr=0.2, momentum=0.9),
    ]
    before = take_snapshot(model, optimizers)
    values = [parameter.detach().clone() for parameter in model.parameters()]
    model(torch.ones(1, 3)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 9.0
    before.restore()
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [0.1, 0.2]
    assert not any(optimizer.state for optimizer in optimizers)
    pairs = zip(values, model.parameters(), strict=True)
    assert all(torch.equal(value, parameter) for value, parameter in pairs)


class Average:
    """Keeps tensors of the device, as an average of weights does."""

    def __init__(self, model: nn.Module) -> None:
        self.values: list[Tensor] = [p.detach().clone() for p in model.parameters()]

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values, "shape": (2, self.values[0])}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.values = state_dict["values"]
        assert torch.equal(state_dict["shape"][1], self.values[0])


def test_a_snapshot_takes_nothing_of_the_devices_memory() -> None:
    with Arena(1_000_000) as device:
        model = nn.Linear(30, 20)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        average = Average(model)

        def step() -> None:
            model(torch.ones(1, 30)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        held = device.allocated_bytes()
        before = take_snapshot(model, [optimizer], [average])
        assert device.allocated_bytes() == held
        moments = [state["exp_avg"].clone() for state in optimizer.state.values()]
        for _ in range(2):
            step()
            average.values[0].zero_()
            before.restore()
            pairs = zip(moments, optimizer.state.values(), strict=True)
            assert all(torch.equal(one, state["exp_avg"]) for one, state in pairs)
            assert average.values[0].any()
