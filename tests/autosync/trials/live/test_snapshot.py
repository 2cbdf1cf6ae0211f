"""What a step changes is put back, also where it failed half way."""

import torch
from torch import nn
from torch.amp import GradScaler

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
