"""Values that wait in host memory between their uses: the same training to the bit, in memory that
holds neither plain training nor one whose activations and state alone are swapped."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autosync.errors import DeviceMemoryExceeded, InvalidInput, InvalidStrategy, NotSupported
from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.attachment import HostSwapper
from tests.autosync.extensions.offload.swapped_scripts import (
    Between,
    evaluates,
    infers,
    loads,
    nothing,
    trained_on,
    with_script,
)
from tests.autosync.extensions.offload.swapped_training import (
    BATCH,
    DEEP_BATCH,
    MODELS,
    ROOMY,
    batch_of,
    least_bytes,
    make,
    moved_kinds,
    same,
    swapping,
    train_step,
    trained,
)
from tests.autosync.extensions.offload.value_models import (
    MODELS_OF_VALUES,
    WritesItsWeight,
    with_shared_memory,
)

DEEP = (DEEP_BATCH,) * 6
SMALL = (BATCH,) * 6


def follows(swapper: HostSwapper | None) -> bool:
    """The passes went by a schedule that moves values, and the next one, just begun, will."""
    assert swapper is not None
    going_on = swapper.is_following and swapper.deviations == 0
    return going_on and "value" in moved_kinds(swapper)


@pytest.mark.parametrize(("name", "sizes"), [("broad", SMALL), ("deep", DEEP)])
def test_it_trains_where_nothing_else_fits(name: str, sizes: tuple[int, ...]) -> None:
    plain = trained(name, sizes=sizes, by_sgd=True)
    without = least_bytes(name, sizes=sizes, with_state=True, by_sgd=True)
    budget = least_bytes(name, sizes=sizes, with_values=True, by_sgd=True)
    assert budget < without <= max(plain.peak_bytes)
    for swapped in (None, budget):
        with pytest.raises((DeviceMemoryExceeded, InvalidStrategy)):
            trained(name, swapped, budget, sizes, with_state=True, by_sgd=True)
    found = trained(name, budget, budget, sizes, with_values=True, by_sgd=True)
    assert same(found.values, plain.values)
    assert follows(found.swapper)


def test_between_least_and_enough_some_stay_and_the_accounting_holds() -> None:
    plain = trained("deep", sizes=DEEP, by_sgd=True)
    least = least_bytes("deep", sizes=DEEP, with_values=True, by_sgd=True)
    budget = (3 * least + max(plain.peak_bytes)) // 4
    found = trained(
        "deep", budget, budget, DEEP, bytes_per_second=1e9, with_values=True, by_sgd=True
    )
    assert same(found.values, plain.values)
    assert found.swapper is not None
    schedule = found.swapper.schedule
    assert schedule is not None
    assert schedule.kept.any()
    assert not schedule.kept.all()
    assert found.peak_bytes[-1] <= schedule.peak_bytes <= budget


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("name", [*MODELS, *MODELS_OF_VALUES])
def test_every_use_of_a_value_is_seen(name: str, with_state: bool) -> None:
    made = MODELS_OF_VALUES.get(name, MODELS.get(name))
    assert made is not None
    how: dict[str, Any] = {"sizes": SMALL, "with_state": with_state, "with_values": True}
    plain, least = trained(made, sizes=SMALL), least_bytes(made, **how)
    budget = least * 21 // 20
    found = trained(made, budget, arena_bytes=budget, **how)
    assert same(found.values, plain.values)
    assert found.swapper is not None
    assert found.swapper.values.tensors
    assert found.swapper.is_following
    assert found.swapper.deviations == 0


def test_bytes_really_leave_and_are_home_between_update_and_forward() -> None:
    model, optimizer = make("broad", by_sgd=True)
    parameters = dict(model.named_parameters())
    with Arena(ROOMY) as arena:
        swapper = swapping(model, ROOMY, optimizer, with_values=True)
        assert swapper is not None
        storages = {name: p.untyped_storage() for name, p in parameters.items()}
        optimizer.zero_grad()
        before = arena.allocated_bytes()
        loss = model(batch_of(0)).square().mean()  # a pass on demand: what is not read is away
        away = [value for value in swapper.values.tensors if value.on_device is None]
        assert len(away) > len(storages) // 3
        assert arena.allocated_bytes() < before - sum(value.size_bytes for value in away) // 2
        assert all(value.parameter.untyped_storage().nbytes() == 0 for value in away)
        loss.backward()
        optimizer.step()
        for name, parameter in parameters.items():
            assert parameter.untyped_storage() is storages[name]
            assert parameter.isfinite().all()


def test_whoever_reads_a_value_that_is_away_is_told_so() -> None:
    model, optimizer = make("broad", by_sgd=True)
    parameter = model.get_parameter("1.0.weight")
    view = parameter[:2]
    with Arena(ROOMY):
        swapping(model, ROOMY, optimizer, with_values=True)
        loss = model(batch_of(0)).square().mean()
        for read in (parameter, view, parameter.data):
            with pytest.raises(RuntimeError, match="are in host memory"):
                read.sum()
        with pytest.raises(RuntimeError, match="storage of size 0"):
            parameter.t()  # torch itself makes no such view
        loss.backward()
        optimizer.step()
        assert torch.equal(view, parameter[:2])


def saves(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """And goes on from what it has saved."""
    if step in (2, 4):
        saved = copy.deepcopy(model.state_dict())
        assert all(value.isfinite().all() for value in saved.values())
        model.load_state_dict(saved)


def halves(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """In place, uncounted."""
    if step % 2:
        for parameter in model.parameters():
            parameter.data.mul_(0.5)


def exchanges(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """The storage, as averages of weights do."""
    if step % 2:
        for parameter in model.parameters():
            parameter.data = 0.9 * parameter.data


def clips(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def copies(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """An average of weights, which is evaluated."""
    average = copy.deepcopy(model)
    with torch.no_grad():
        assert torch.equal(average(batch_of(step)), model(batch_of(step)))


def runs_a_part(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Whose gradients count."""
    model.get_submodule("1")(torch.ones(DEEP_BATCH, 64)).sum().backward()


@pytest.mark.parametrize(
    ("between", "behind"),
    [
        (nothing, nothing),
        (evaluates, nothing),
        (nothing, evaluates),
        (infers, nothing),
        (nothing, infers),
        (saves, nothing),
        (nothing, saves),
        (loads, loads),
        (halves, halves),
        (exchanges, exchanges),
        (clips, nothing),
        (nothing, copies),
        (copies, nothing),
        (runs_a_part, nothing),
    ],
)
def test_a_script_may_do_what_it_likes(between: Between, behind: Between) -> None:
    plain, _ = with_script(between, behind, None)
    roomy, least = with_script(between, behind, ROOMY, with_values=True)
    assert same(roomy, plain)
    # of a storage that was exchanged the old one may be there until it is collected
    room = (3, 2) if exchanges in (between, behind) else (6, 5)
    tight, _ = with_script(between, behind, least * room[0] // room[1], with_values=True)
    assert same(tight, plain)


def test_saved_and_resumed_midway_it_goes_on_to_the_bit() -> None:
    budget = least_bytes("deep", sizes=DEEP, with_state=True, with_values=True)
    _, plain, _ = trained_on(range(10), None, None)
    saved, _, _ = trained_on(range(5), None, budget, with_values=True)
    _, resumed, swapper = trained_on(range(5, 10), saved, budget, with_values=True)
    assert same(resumed, plain)
    assert swapper is not None
    assert swapper.is_following
    _, resumed, _ = trained_on(range(5, 10), saved, None)  # taken back by plain training
    assert same(resumed, plain)


def hooks_of(model: nn.Module) -> list[object]:
    found: list[object] = []
    for module in model.modules():
        found += module._forward_hooks.values()
        found += module._forward_pre_hooks.values()
        found += module._state_dict_pre_hooks.values()
        found += module._load_state_dict_pre_hooks.values()
    return found


@pytest.mark.parametrize("within_a_pass", [False, True])
def test_taken_off_it_leaves_the_model_as_it_was(within_a_pass: bool) -> None:
    plain = trained("broad", sizes=SMALL, by_sgd=True)
    model, optimizer = make("broad", by_sgd=True)
    with Arena(ROOMY):
        swapper = swapping(model, ROOMY, optimizer, with_values=True)
        assert swapper is not None
        for step in range(3):
            train_step(model, optimizer, batch_of(step))
        optimizer.zero_grad()
        loss = model(batch_of(3)).square().mean() if within_a_pass else None
        swapper.remove()
        assert all(parameter.isfinite().all() for parameter in model.parameters())
        loss = model(batch_of(3)).square().mean() if loss is None else loss
        loss.backward()
        optimizer.step()
        for step in range(4, len(SMALL)):
            train_step(model, optimizer, batch_of(step))
    assert same([value.detach() for value in model.state_dict().values()], plain.values)
    assert hooks_of(model) == []


def test_after_a_step_that_had_no_room_values_come_back() -> None:
    model, optimizer = make("broad", by_sgd=True)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    least = least_bytes("broad", sizes=SMALL, with_values=True, by_sgd=True)
    with Arena(least) as arena:
        arena.count(model.parameters())
        swapper = swapping(model, least, optimizer, with_values=True)
        assert swapper is not None
        with pytest.raises(DeviceMemoryExceeded):
            model(batch_of(0, 64 * BATCH))
        swapper.remove()
    assert same([parameter.detach() for parameter in model.parameters()], before)


def test_a_value_that_its_module_writes_uncounted_stays() -> None:
    model, optimizer = make(WritesItsWeight, by_sgd=True)
    with Arena(ROOMY):
        swapper = swapping(model, ROOMY, optimizer, with_values=True)
        assert swapper is not None
        train_step(model, optimizer, batch_of(0))
        written = [value for value in swapper.values.tensors if value.is_uncounted]
        assert len(written) == 3


def test_values_that_share_their_memory_stay() -> None:
    model, optimizer = make(with_shared_memory, by_sgd=True)
    with Arena(ROOMY):
        swapper = swapping(model, ROOMY, optimizer, with_values=True)
        assert swapper is not None
        (value,) = swapper.values.tensors
        assert value.parameter is model.get_parameter("4.weight")


def test_a_changed_value_is_refused_by_backward() -> None:
    """As torch itself does."""
    model, optimizer = make("broad", by_sgd=True)
    with Arena(ROOMY):
        swapping(model, ROOMY, optimizer, with_values=True)
        loss = model(batch_of(0)).square().mean()
        model.state_dict()  # brings all values back
        with torch.no_grad():
            model.get_parameter("1.0.weight").mul_(2)
        with pytest.raises(InvalidInput, match="changed in place"):
            loss.backward()


def test_a_step_with_a_closure_is_refused() -> None:
    model, optimizer = make("broad", by_sgd=True)

    def closure() -> Tensor:
        loss: Tensor = model(batch_of(0)).square().mean()
        loss.backward()
        return loss

    with Arena(ROOMY):
        swapping(model, ROOMY, optimizer, with_values=True, with_state=False)
        with pytest.raises(NotSupported, match="given a closure") as refused:
            optimizer.step(closure)  # type: ignore[arg-type]  # torch's annotation: a float
    assert refused.value.thing == "swap.values"


def test_the_model_may_be_converted_between_steps() -> None:
    def run(budget: int | None) -> list[Tensor]:
        model, optimizer = make("broad", by_sgd=True)
        with Arena(ROOMY):
            swapping(model, budget, optimizer, with_values=True)
            for step in range(6):
                if step == 3:
                    model.double()
                batch = batch_of(step).double() if step >= 3 else batch_of(step)
                train_step(model, optimizer, batch)
        return [parameter.detach().clone() for parameter in model.parameters()]

    assert same(run(ROOMY), run(None))
