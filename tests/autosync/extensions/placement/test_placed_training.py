"""Placed modules on real ranks: exact beside torch's DDP and beside one process, and whole in every
checkpoint."""

import copy
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.bundle import Bundle, make_bundle
from autosync.errors import AutosyncError, NotSupported
from autosync.extensions.placement.attachment import PlacementAttachment
from autosync.extensions.placement.document import (
    PlacedModule,
    PlacedModules,
    evenly,
    in_proportion,
    placed_module,
)
from autosync.extensions.placement.placed_forward import (
    PlacedForward,
    check_samples_alone,
    items_of,
)
from autosync.extensions.placement.proposals import with_placement
from autosync.extensions.placement.row_exchange import RowExchange, RowRoute
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.hooks.model_hooks import REDUCE
from autosync.runtime.transport.agreement import CollectiveCalls
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.runtime.transport.process_groups import Groups, open_groups, working_group
from autosync.search.designs.known_designs import all_reduce_5mb, dear, parallax, priority_sliced
from autosync.strategy import Replica
from autosync.trials import session
from autosync.verification import verify
from tests.autosync.runtime.distributing import ended_alone, largest_difference, refusal
from tests.autosync.runtime.parts import gradient_of
from tests.autosync.runtime.ranks import Ranks
from tests.placed_models import FEATURES, Listed, Mixing, SparseTable, Wide, loss, recorded

STEPS = 3
BATCH = 4

PAIR: dict[str, PlacedModules] = {
    "one device": (evenly("block", [1]),),
    "its first device": (evenly("table", [0]),),
    "used twice": (evenly("twice", [1]),),
    "uneven": (in_proportion("block", [0, 1], [1.0, 3.0]), evenly("last", [0, 1])),
    "several": (evenly("table", [0]), evenly("twice", [1]), PlacedModule("last", (1,), (1.0,))),
    "first layer": (evenly("first", [1]), evenly("scale", [0])),
}
DESIGNS = {"groups": all_reduce_5mb, "sliced": priority_sliced, "decoupled": dear}


def make(kind: type[nn.Module] = Wide) -> nn.Module:
    torch.manual_seed(3)
    return kind()


def bundle(
    placement: PlacedModules, world: int, design: str = "groups", shares: tuple[float, ...] = ()
) -> Bundle:
    where = recorded(make(), world)
    strategy = with_placement(DESIGNS[design](where), where, placement)
    if shares:
        replicas = tuple(Replica(rank, share) for rank, share in enumerate(shares))
        strategy = replace(strategy, replicas=replicas)
    verify(strategy, where)
    return make_bundle(strategy, where)


def optimizer_of(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def batch(iteration: int, rank: int, rows: int = BATCH) -> Tensor:
    generator = torch.Generator().manual_seed(100 * iteration + rank)
    return torch.randn(rows, FEATURES, generator=generator)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, rows: int = BATCH) -> None:
    for iteration in range(STEPS):
        optimizer.zero_grad()
        x = batch(iteration, rank, rows)
        loss(model(x), x).backward()
        optimizer.step()


def distributed(
    rank: int, given: Bundle, kind: str = "sgd"
) -> tuple[nn.Module, torch.optim.Optimizer]:
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make()
    with torch.no_grad():  # begins with rank 0's values
        for parameter in model.parameters():
            parameter.add_(rank)
    return autosync.distribute(model, optimizer_of(kind, model), given)


def beside_ddp(rank: int, world: int, given: Bundle, kind: str) -> tuple[float, float]:
    model, optimizer = distributed(rank, given, kind)
    ddp = DistributedDataParallel(make())
    theirs = optimizer_of(kind, ddp)
    train(model, optimizer, rank)
    train(ddp, theirs, rank)
    whole = largest_difference(model.state_dict(), ddp.module.state_dict())
    autosync.detach(model)
    after = largest_difference(dict(model.named_parameters()), dict(ddp.module.named_parameters()))
    return whole, after


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("placement", PAIR.values(), ids=PAIR)
def test_training_is_ddps(pair: Ranks, placement: PlacedModules, kind: str) -> None:
    for whole, after in pair.run(beside_ddp, bundle(placement, 2), kind):
        assert whole < 3e-6
        assert after < 3e-6


@pytest.mark.parametrize("design", DESIGNS)
def test_other_designs_keep_their_messages_beside_placed_modules(pair: Ranks, design: str) -> None:
    for whole, _ in pair.run(beside_ddp, bundle(PAIR["several"], 2, design), "sgd"):
        assert whole < 3e-6


def weighted_training(shares: tuple[float, ...], rows: tuple[int, ...]) -> dict[str, Tensor]:
    """One process, on the share-weighted average of the replicas' gradients."""
    model = make()
    optimizer = optimizer_of("sgd", model)
    for iteration in range(STEPS):
        optimizer.zero_grad()
        for rank, share in enumerate(shares):
            x = batch(iteration, rank, rows[rank])
            (loss(model(x), x) * share).backward()
        optimizer.step()
    return dict(model.state_dict())


def sizes_of(model: nn.Module) -> list[tuple[str, int]]:
    return [(name, parameter.numel()) for name, parameter in model.named_parameters()]


def uneven(
    rank: int, world: int, given: Bundle, rows: tuple[int, ...], wanted: dict[str, Tensor]
) -> tuple[float, list[int]]:
    model, optimizer = distributed(rank, given)
    train(model, optimizer, rank, rows[rank])
    held = [parameter.numel() for parameter in model.parameters()]
    far = largest_difference(model.state_dict(), wanted)
    autosync.detach(model)
    return far, held


THREE: dict[str, PlacedModules] = {
    "a subset": (evenly("block", [0, 2]),),
    "uneven subset": (PlacedModule("block", (1, 2), (0.3, 0.7)), evenly("table", [1])),
    "everything but one": (
        *(evenly(name, [rank]) for rank, name in enumerate(("first", "table", "twice"))),
        PlacedModule("block", (0, 1, 2), (0.5, 0.25, 0.25)),
        evenly("scale", [0, 1]),
    ),
}


@pytest.mark.parametrize("shares", [(1 / 3,) * 3, (0.5, 0.3, 0.2)], ids=["even", "uneven"])
@pytest.mark.parametrize("placement", THREE.values(), ids=THREE)
def test_shares_weigh_as_in_one_process(
    three: Ranks, placement: PlacedModules, shares: tuple[float, ...]
) -> None:
    rows = (5, 3, 2)
    wanted = weighted_training(shares, rows)
    given = bundle(placement, 3, "groups", shares)
    for rank, (far, held) in enumerate(three.run(uneven, given, rows, wanted)):
        assert far < 3e-6
        assert held == [
            0 if (placed := placed_module(placement, name)) and rank not in placed.ranks else size
            for name, size in sizes_of(make())
        ]


def evaluated(rank: int, world: int, given: Bundle) -> tuple[float, float, bool]:
    """Rank 1 has another number of samples, and none at the end."""
    model, _ = distributed(rank, given)
    alone = make().eval()
    model.eval()
    with torch.no_grad():
        x = batch(0, rank, 3 + 2 * rank)
        far = float((model(x) - alone(x)).abs().max())
        few = batch(1, rank, 2 * (1 - rank))
        found = model(few)
        least = float((found - alone(few)).abs().max()) if len(few) else float(found.numel())
    trains = model(x).requires_grad
    autosync.detach(model)
    return far, least, trains


@pytest.mark.parametrize("placement", PAIR.values(), ids=PAIR)
def test_evaluation_is_the_models_own(pair: Ranks, placement: PlacedModules) -> None:
    for far, least, trains in pair.run(evaluated, bundle(placement, 2)):
        assert far < 1e-6
        assert least < 1e-6
        assert trains


def resumed(rank: int, world: int, given: Bundle) -> tuple[float, float, list[int]]:
    """Train, save, load into a model of the same plan and into a plain one, train on."""
    model, optimizer = distributed(rank, given, "adamw")
    train(model, optimizer, rank)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, rank)
    wanted = copy.deepcopy(model.state_dict())
    again, second = distributed(rank, given, "adamw")
    again.load_state_dict(saved[0])
    second.load_state_dict(copy.deepcopy(saved[1]))  # torch goes on with the given tensors
    train(again, second, rank)
    found = largest_difference(again.state_dict(), wanted)
    plain = make()
    third = optimizer_of("adamw", plain)
    plain.load_state_dict(saved[0])
    third.load_state_dict(saved[1])
    ddp = DistributedDataParallel(plain)
    train(ddp, third, rank)
    for each in (model, again):
        autosync.detach(each)
    return found, largest_difference(plain.state_dict(), wanted), sorted(saved[1]["state"])


def test_a_checkpoint_is_whole_and_goes_on_anywhere(pair: Ranks) -> None:
    parameters = len(list(make().parameters()))
    for placed, plain, states in pair.run(resumed, bundle(PAIR["several"], 2)):
        assert placed < 3e-6
        assert plain < 3e-6
        assert states == list(range(parameters))


class LostPeers(CollectiveCalls):
    """A peer has died."""

    def __init__(self) -> None:
        pass

    def meet(self, what: str) -> None:
        raise dist.DistBackendError(f"rank 0 waits in {what}, which rank 1 has not called")


@pytest.mark.parametrize("call", ["model.state_dict()", "optimizer.state_dict()"])
def test_a_checkpoint_without_a_lost_peer_says_so(call: str) -> None:
    model = nn.Linear(2, 1)
    optimizer = optimizer_of("sgd", model)
    made = PlacementAttachment([], optimizer, RowExchange(None, 0, (1.0,)), LostPeers())
    gather: Callable[[], object] = {
        "model.state_dict()": lambda: made._fill(model, {}, "", None),
        "optimizer.state_dict()": lambda: made._fill_optimizer_state(optimizer, {"state": {}}),
    }[call]
    with pytest.raises(SynchronizationFailed, match=r"waits in .*A peer died") as failed:
        gather()
    assert call in failed.value.message


def detached(rank: int, world: int, given: Bundle) -> tuple[float, list[bool]]:
    """A second stage goes on with DDP, the optimizer's state included."""
    model, optimizer = distributed(rank, given, "adamw")
    train(model, optimizer, rank)
    plain, same = autosync.detach(model)
    assert same is optimizer
    ddp = DistributedDataParallel(plain)
    train(ddp, same, rank)
    alone = DistributedDataParallel(make())
    theirs = optimizer_of("adamw", alone)
    train(alone, theirs, rank)
    train(alone, theirs, rank)
    trained = [parameter.requires_grad for parameter in plain.parameters()]
    return largest_difference(plain.state_dict(), alone.module.state_dict()), trained


def test_detach_gives_everything_back(pair: Ranks) -> None:
    for far, trained in pair.run(detached, bundle(PAIR["several"], 2)):
        assert far < 3e-6
        assert all(trained)


def refused_trial(rank: int, world: int, given: Bundle) -> tuple[int, list[tuple[str, int]]]:
    """How many parameters this rank lacks in a trial whose plan all ranks refuse, and the sizes of
    all behind it."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make()
    groups = session.ReusedGroups()
    attached = session.attach(model, optimizer_of("sgd", model), given, 1.0, groups)
    lacking = sum(not parameter.numel() for parameter in model.parameters())
    plan = ATTACHED.plan_of(model)
    assert plan is not None
    dist.barrier()
    plan.stop(NotSupported("on purpose."))
    attached.detach()
    groups.close()
    return lacking, sizes_of(model)


def test_a_model_is_whole_again_behind_a_trial_that_was_refused(pair: Ranks) -> None:
    for lacking, sizes in pair.run(refused_trial, bundle(PAIR["several"], 2)):
        assert lacking > 0
        assert sizes == sizes_of(make())


def orders_in_memory(rank: int, world: int, given: Bundle) -> list[bool]:
    """Of weights that are not in row-major order: as before behind detach, and their state too, in
    a checkpoint and behind detach; and a plan can be attached again."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data = parameter.detach().t().contiguous().t()
    optimizer = optimizer_of("adamw", model)
    before = [parameter.stride() for parameter in model.parameters()]
    autosync.distribute(model, optimizer, given)
    train(model, optimizer, rank)
    states = optimizer.state_dict()["state"]
    saved = [states[place]["exp_avg"].stride() for place in range(len(before))]
    autosync.detach(model)
    after = [parameter.stride() for parameter in model.parameters()]
    held = [optimizer.state[parameter]["exp_avg"].stride() for parameter in model.parameters()]
    again = refusal(lambda: autosync.distribute(model, optimizer, given))
    if not again:
        autosync.detach(model)
    return [after == before, saved == before, held == before, again == ""]


def test_weights_and_state_keep_their_order_in_memory(pair: Ranks) -> None:
    assert pair.run(orders_in_memory, bundle(PAIR["several"], 2)) == [[True] * 4] * 2


def accumulated(rank: int, world: int, given: Bundle) -> float:
    model, optimizer = distributed(rank, given)
    ddp = DistributedDataParallel(make())
    theirs = optimizer_of("sgd", ddp)
    for network, own in ((model, optimizer), (ddp, theirs)):
        for iteration in range(STEPS):
            x, y = batch(iteration, rank), batch(iteration + 10, rank)
            with network.no_sync():  # type: ignore[operator]
                loss(network(x), x).backward()
            loss(network(y), y).backward()
            own.step()
            own.zero_grad()
    far = largest_difference(model.state_dict(), ddp.module.state_dict())
    autosync.detach(model)
    return far


def test_gradients_accumulate(pair: Ranks) -> None:
    assert max(pair.run(accumulated, bundle(PAIR["several"], 2))) < 3e-6


def sparse(rank: int, world: int, given: Bundle) -> float:
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model, ddp = make(SparseTable), DistributedDataParallel(make(SparseTable))
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    autosync.distribute(model, own, given)
    theirs = torch.optim.SGD(ddp.parameters(), lr=0.1)
    train(model, own, rank)
    train(ddp, theirs, rank)
    far = largest_difference(model.state_dict(), ddp.module.state_dict())
    autosync.detach(model)
    return far


def test_a_table_with_sparse_gradients_lives_on_one_device(pair: Ranks) -> None:
    where = recorded(make(SparseTable), 2)
    strategy = with_placement(parallax(where), where, (evenly("table", [1]),))
    verify(strategy, where)
    assert max(pair.run(sparse, make_bundle(strategy, where))) < 3e-6


def clipped(rank: int, world: int, given: Bundle, by: str) -> float:
    """By the true norm over all ranks, each variable counted once."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model, ddp = make(), DistributedDataParallel(make())
    own, theirs = optimizer_of("sgd", model), optimizer_of("sgd", ddp)
    limit = 0.5 if by == "distribute" else None
    autosync.distribute(model, own, given, max_grad_norm=limit)
    for iteration in range(STEPS):
        x = batch(iteration, rank)
        for network, optimizer in ((model, own), (ddp, theirs)):
            optimizer.zero_grad()
            (10 * loss(network(x), x)).backward()
        norm = nn.utils.clip_grad_norm_(ddp.parameters(), 0.5)
        if by == "script":
            found = autosync.clip_grad_norm_(model.parameters(), 0.5)
            assert torch.allclose(norm, found, rtol=1e-5)
        assert norm > 0.5, "nothing was clipped"
        own.step()
        theirs.step()
    far = largest_difference(model.state_dict(), ddp.module.state_dict())
    autosync.detach(model)
    return far


@pytest.mark.parametrize("by", ["distribute", "script"])
@pytest.mark.parametrize("placement", [PAIR["several"], PAIR["uneven"]])
def test_gradients_are_clipped_by_their_global_norm(
    pair: Ranks, placement: PlacedModules, by: str
) -> None:
    assert max(pair.run(clipped, bundle(placement, 2), by)) < 3e-6


def refusals(rank: int, world: int, given: Bundle) -> dict[str, str]:
    found = {}
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make()
    optimizer = optimizer_of("sgd", model)

    autosync.distribute(model, optimizer, given)
    found["copy"] = refusal(lambda: copy.deepcopy(model.block))
    found["optimizer"] = refusal(lambda: copy.deepcopy(optimizer))
    x = batch(0, rank)
    loss(model(x), x).backward()
    holder = model.block[0].weight if rank == 1 else model.first.weight  # type: ignore[union-attr,index]
    found["read"] = refusal(lambda: holder.grad.norm())  # type: ignore[union-attr,operator]
    dist.barrier()
    autosync.detach(model)
    return found


def test_access_to_a_module_that_one_rank_holds_is_refused(pair: Ranks) -> None:
    found = pair.run(refusals, bundle(PAIR["one device"], 2))
    for each in found:
        assert "no rank holds all of it" in each["copy"]
        assert "no rank holds all of it" in each["optimizer"]
    assert "only the ranks that its module is placed on have it" in found[1]["read"]
    assert not found[0]["read"]


def listed(rank: int, world: int) -> str:
    model = make(Listed)
    where = recorded(make(Listed), world)
    strategy = with_placement(all_reduce_5mb(where), where, (evenly("body", [1]),))
    optimizer = optimizer_of("sgd", model)
    return refusal(lambda: autosync.distribute(model, optimizer, make_bundle(strategy, where)))


def test_a_list_of_modules_is_refused_for_it_is_never_called(pair: Ranks) -> None:
    for found in pair.run(listed):
        assert "'body' (ModuleList) is placed, but it only holds others" in found


def exchanging(rank: int) -> tuple[Groups, RowExchange]:
    """Between two ranks that a module is dealt to evenly."""
    groups = open_groups(working_group(None))
    return groups, RowExchange(groups.get("placement", (0, 1), "gloo"), rank, (0.5, 0.5))


def unequal(rank: int, world: int) -> dict[str, str]:
    """Placed without a graph, as after an import that could not tell."""
    groups, exchange = exchanging(rank)
    model = make(Mixing)
    found = {}
    for name in ("centred", "tied"):
        module = model.get_submodule(name)
        placed = PlacedForward(name, module, evenly(name, [1]), exchange)
        x = batch(0, rank)
        found[name] = refusal(lambda: placed(x))  # noqa: B023
    uneven = in_proportion("centred", [0, 1], [1.0, 7.0])  # rank 0 has one sample to check
    placed = PlacedForward("centred", model.get_submodule("centred"), uneven, exchange)
    found["one sample"] = refusal(lambda: placed(batch(0, rank)))
    placed = PlacedForward("tied", model.get_submodule("tied"), evenly("tied", [1]), exchange)
    found["nested"] = refusal(lambda: placed(batch(0, rank), [batch(0, rank)]))
    found["shape"] = refusal(lambda: placed(torch.zeros(2, FEATURES, 2 + rank)))
    found["rows"] = refusal(lambda: placed(torch.zeros(2, 2), torch.zeros(3, 2)))
    groups.close()
    return found


def test_modules_that_mix_samples_are_refused_by_name_on_every_rank(pair: Ranks) -> None:
    for found in pair.run(unequal):
        assert "depends on the others in the batch" in found["centred"]
        assert "depends on the others in the batch" in found["one sample"]
        assert not found["tied"]
        assert "nothing nested" in found["nested"]
        assert "differ from rank 0's in shape" in found["shape"]
        assert "one number of samples each" in found["rows"]


class Pairing(nn.Module):
    """Gives out two tensors where it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor, twice: bool) -> Tensor | tuple[Tensor, Tensor]:
        out: Tensor = self.linear(x)
        return (out, 2 * out) if twice else out


def told(rank: int, world: int) -> list[int]:
    """How many tensors each call gives out."""
    groups, exchange = exchanging(rank)
    placed = PlacedForward("pairing", make(Pairing), evenly("pairing", [1]), exchange)
    found = [len(items_of(placed(batch(0, rank), twice))) for twice in (False, True)]
    groups.close()
    return found


def test_a_flag_decides_what_a_placed_module_gives_out(pair: Ranks) -> None:
    assert pair.run(told) == [[1, 2]] * 2


def test_gradients_in_half_precision_are_weighted_by_unrounded_shares() -> None:
    exchange = RowExchange(None, 1, (0.25, 0.75))
    gradients = torch.tensor([[5.9375], [5.9375]], dtype=torch.bfloat16)  # a row of each rank
    found = exchange.weighted(gradients.clone(), RowRoute((1, 1), (1, 1)))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, torch.stack((gradients[0] / 3, gradients[1])))


class Rounding(nn.Module):
    """In a batch it rounds otherwise, by the last bit of bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 2.0**-7) if len(x) > 1 else x


def test_one_sample_may_be_rounded_otherwise_in_half_precision() -> None:
    module, ones = Rounding(), torch.ones(2, 3)
    check_samples_alone("rounding", module, module.forward, (ones.bfloat16(),), {})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check_samples_alone("rounding", module, module.forward, (ones,), {})
    with pytest.raises(NotSupported, match="depends on the others"):
        check_samples_alone("rounding", module, module.forward, (ones,), {})
    halves = batch(0, 0).bfloat16()
    with pytest.raises(NotSupported, match="depends on the others"):
        check_samples_alone("centred", module, lambda x: x - x.mean(0), (halves,), {})


class Trimmed(nn.Module):
    """A value decides how wide what it gives out is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out[:, : int(x[0, 0])]


def trimmed(rank: int, world: int) -> list[str]:
    groups, exchange = exchanging(rank)
    module = make(Trimmed)
    placed = PlacedForward("trimmed", module, evenly("trimmed", [0, 1]), exchange)
    found = [
        refusal(lambda: placed(torch.full((4, FEATURES), width)))  # noqa: B023
        for width in (1.0 + rank, 1.0, 2.0)
    ]
    module.requires_grad_(False)
    found.append(refusal(lambda: placed(torch.ones(4, FEATURES))))
    groups.close()
    return found


def test_a_module_gives_out_one_form_on_all_ranks_and_in_every_call(pair: Ranks) -> None:
    for first, second, third, frozen in pair.run(trimmed):
        assert "gives out on rank 1 differs from rank 0's in shape" in first
        assert not second
        assert not frozen
        assert "gives out has changed in shape" in third


def of_another_type(rank: int, world: int, given: Bundle) -> str:
    """What rank 1, which alone computes the block, makes of samples has another type later."""
    model, optimizer = distributed(rank, given)
    train(model, optimizer, rank)
    placed: Any = vars(model.block)["forward"]
    plain = placed._forward

    def go_on() -> None:
        if rank == 1:
            placed._forward = lambda x: plain(x).double()
        train(model, optimizer, rank)

    return ended_alone(model, rank == 1, go_on)


def test_a_form_that_changes_on_one_rank_is_refused_by_name_on_every_rank(pair: Ranks) -> None:
    other, own = pair.run(of_another_type, bundle(PAIR["one device"], 2))
    assert "module 'block' is placed on ranks (1,), but what it gives out has changed" in own
    assert other == f"rank 1 stopped: {own}"


def failing(rank: int, world: int, given: Bundle) -> str:
    """Rank 1, which alone computes the block, meets an error of the block's own."""
    model, optimizer = distributed(rank, given)
    train(model, optimizer, rank)
    placed: Any = vars(model.block)["forward"]

    def fails(x: Tensor) -> Tensor:
        raise ValueError("an odd sample")

    if rank == 1:
        placed._forward = fails
    return ended_alone(model, rank == 1, lambda: train(model, optimizer, rank))


ODD = "ValueError: an odd sample"


def test_an_error_of_a_placed_module_is_told_on_every_rank(pair: Ranks) -> None:
    other, own = pair.run(failing, bundle(PAIR["one device"], 2))
    assert own == ODD
    assert other.startswith(f"rank 1 stopped: module 'block' ended with {ODD}")


def failing_at_first(rank: int, world: int) -> str:
    groups, exchange = exchanging(rank)
    module = make(Pairing)
    module.linear = nn.Linear(FEATURES + 1, FEATURES)
    placed = PlacedForward("pairing", module, evenly("pairing", [1]), exchange)
    try:
        placed(batch(0, rank), False)
    except (RuntimeError, NotSupported) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        groups.close()
    return "nothing"


def test_an_error_of_the_first_call_is_told_on_every_rank(pair: Ranks) -> None:
    other, own = pair.run(failing_at_first)
    assert own.startswith("RuntimeError: ")
    assert "rank 1 refuses it: module 'pairing' ended with RuntimeError" in other


def frozen_meanwhile(rank: int, world: int, given: Bundle) -> list[bool]:
    """Which parameters of the block are trained behind the plan."""
    model, optimizer = distributed(rank, given)
    train(model, optimizer, rank)
    block = model.get_submodule("block")
    for parameter in list(block.parameters())[1:]:
        parameter.requires_grad_(False)
    autosync.detach(model)
    return [parameter.requires_grad for parameter in block.parameters()]


def test_what_was_frozen_under_a_plan_is_frozen_behind_it_on_every_rank(pair: Ranks) -> None:
    one, two = pair.run(frozen_meanwhile, bundle(PAIR["one device"], 2))
    assert one == two
    assert one[0]
    assert not any(one[1:])


class Probe(nn.Module):
    """No gradient comes back to what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x.detach())
        return out


def probed(rank: int, world: int) -> float:
    groups, exchange = exchanging(rank)
    x = batch(0, rank).requires_grad_()
    PlacedForward("probe", make(Probe), evenly("probe", [1]), exchange)(x).sum().backward()
    groups.close()
    return float(gradient_of(x).abs().max())


def test_ranks_deal_gradients_alike_where_a_module_detaches_its_input(pair: Ranks) -> None:
    assert pair.run(probed) == [0.0, 0.0]


class RefusesLoading(nn.Linear):
    """Refuses a hook that is installed before modules are placed."""

    def register_load_state_dict_pre_hook(self, hook: Any) -> Any:
        raise TypeError("no hooks on this module")


class RefusesSaving(nn.Linear):
    """Refuses a hook that the placing of modules installs."""

    def register_state_dict_post_hook(self, hook: Any) -> Any:
        raise TypeError("no hooks on this module")


def half_placed(
    rank: int, world: int, given: Bundle, culprit: int, kind: type[nn.Linear]
) -> tuple[str, list[str]]:
    """The words in which rank `culprit` stops in the middle of placing, and what is left."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make()
    if rank == culprit:
        model.last = kind(8, 3)

    def scaled(x: Tensor) -> Tensor:
        return 2 * x

    model.table.__dict__["forward"] = kept = scaled  # as Accelerate wraps a forward
    optimizer = optimizer_of("sgd", model)
    shapes = [(parameter.shape, parameter.requires_grad) for parameter in model.parameters()]
    try:
        autosync.distribute(model, optimizer, given)
    except (AutosyncError, TypeError) as error:
        said = str(error)
    else:
        said = "nothing"
    found = [name for name, module in model.named_modules() if _state_hooked(module)]
    found += [name for name, module in model.named_modules() if REDUCE in vars(module)]
    if model.table.__dict__.pop("forward") is not kept:
        found.append("another forward")
    found += [
        f"{name}.forward" for name, module in model.named_modules() if "forward" in vars(module)
    ]
    if shapes != [(parameter.shape, parameter.requires_grad) for parameter in model.parameters()]:
        found.append("parameters without values")
    train(model, optimizer, rank)  # alone
    return said, found


def _state_hooked(module: nn.Module) -> bool:
    return bool(module._state_dict_hooks or module._load_state_dict_pre_hooks)


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize("kind", [RefusesLoading, RefusesSaving])
def test_a_failed_attachment_leaves_the_model_unchanged(
    pair: Ranks, kind: type[nn.Linear], culprit: int
) -> None:
    answers = pair.run(half_placed, bundle(PAIR["several"], 2), culprit, kind)
    for said, found in answers:
        assert "no hooks on this module" in said
        assert found == []
    assert f"rank {culprit} cannot begin" in answers[1 - culprit][0]
