"""Plans over NCCL, between ranks that share a GPU, equal training in one process."""

import time

import pytest
import torch.distributed as dist

from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.layout.records import issue_order
from autosync.search.designs.design_table import hand_designed
from autosync.search.space import Space
from autosync.strategy import Schedule
from tests.autosync.runtime import training
from tests.autosync.runtime.cases import Case, attached, iterate, train_reference, worst_difference
from tests.autosync.runtime.compression import test_encodings, test_factors, test_rows
from tests.autosync.runtime.device.gpus import between_gpus, on_gpus
from tests.autosync.runtime.drawn import KINDS, Drawn, domain
from tests.autosync.runtime.execution import test_exact, test_random, test_training
from tests.autosync.runtime.place import HERE, beside, here
from tests.autosync.runtime.ranks import Ranks, ranks
from tests.autosync.runtime.traces import disorder
from tests.autosync.runtime.training import OVERLAP
from tests.autosync.runtime.updates import test_unused

SCHEDULES = (Schedule(), OVERLAP)


@on_gpus
@pytest.mark.parametrize("method", test_exact.METHODS)
def test_synchronizers_and_schedules(nccl: Ranks, method: str) -> None:
    """Owners are all ranks in turn."""
    forms = (("sgd", "whole", Schedule()), ("adamw", "uneven", OVERLAP), ("sgd", "pieces", OVERLAP))
    cases = [
        Case(optimizer=optimizer, method=method, partition=partition, schedule=schedule, groups=3)
        for optimizer, partition, schedule in forms
    ]
    if method in test_exact.HALVED:
        cases.append(Case(method=method, schedule=test_exact.IDLE, groups=3))
    test_exact.check_exact(nccl, cases)


@on_gpus
@pytest.mark.parametrize("method", ["hierarchical", "hierarchical_ps", "hierarchical_byteps"])
def test_two_stages(nccl_three: Ranks, method: str) -> None:
    """On a node of two ranks and one of one."""
    test_exact.check_exact(
        nccl_three,
        [
            Case(method=method, ranks_per_node=2, schedule=schedule, partition="uneven", groups=3)
            for schedule in SCHEDULES
        ],
    )


def ready_in_opposite_orders(rank: int, world: int, case: Case) -> tuple[float, str, list[str]]:
    """The difference from one process, what was not in the plan's order, and the teams of this
    rank's messages in that order."""
    trace = ExecutionTrace()
    model, optimizer, attachment = attached(case, world, trace)
    plan = attachment.engine.plan
    queues = [record.queue for record in attachment.engine.messages]
    iterate(model, optimizer, rank, range(case.iterations))
    attachment.detach()
    teams = [
        next(str(team) for team in (*plan.teams[message.teams], ()) if not team or rank in team)
        for message in plan.messages
    ]
    wrong = disorder(trace, issue_order(plan), queues, case.iterations)
    return worst_difference(model, train_reference(case, world)), wrong, teams


@on_gpus
@pytest.mark.parametrize("schedule", SCHEDULES, ids=["fifo", "overlap"])
def test_two_teams_whose_messages_get_ready_in_opposite_orders(
    nccl_three: Ranks, schedule: Schedule
) -> None:
    """Ranks 0 and 1 are in two teams. Were messages issued as they get ready, each would wait in a
    collective that the other has put behind its own."""
    case = Case(model="opposed", method="teams", ranks_per_node=2, schedule=schedule)
    found = nccl_three.run(ready_in_opposite_orders, case)
    for difference, wrong, _ in found:
        assert difference < 2e-6
        assert wrong == ""
    for _, _, teams in found[:2]:
        assert {"(0, 1)", "(0, 1, 2)"} <= set(teams)


@on_gpus
@pytest.mark.parametrize("model", ["cnn", "tied", "branching"])
def test_models(nccl_pair: Ranks, model: str) -> None:
    cases = [Case(model=model, schedule=OVERLAP), Case(model=model, method="zero")]
    training.each_case(nccl_pair, training.train_plain, *cases)


def left_out_late(rank: int, world: int, cases: list[Case]) -> list[float]:
    """Rank 1 says later than rank 0 that it has left out a branch, too. How far what no rank used
    has moved."""
    found = []
    for case in cases:
        model = here(test_unused.Branches())
        _, optimizer, attachment = attached(case, world, model=model)
        for iteration in range(3):
            optimizer.zero_grad()
            loss = model(beside(model, test_unused.inputs(iteration, rank)), (0,))
            if rank == 1:
                time.sleep(0.2)
            loss.backward()
            optimizer.step()
        attachment.detach()
        start = here(test_unused.Branches())
        found.append(worst_difference(model.branches[1:], start.branches[1:]))
    return found


@on_gpus
def test_what_no_rank_used_is_unchanged_where_one_is_late(nccl_pair: Ranks) -> None:
    """Nothing makes the host of the other one wait."""
    cases = [
        Case(optimizer="adamw", method=method, schedule=schedule, groups=3)
        for method in ("all_reduce", "zero")
        for schedule in SCHEDULES
    ]
    for moved in nccl_pair.run(left_out_late, cases):
        assert max(moved) == 0.0, dict(zip(cases, moved, strict=True))


@on_gpus
def test_uneven_shares(nccl_pair: Ranks) -> None:
    cases = [Case(shares=(0.75, 0.25), method=method) for method in ("all_reduce", "zero", "ps")]
    training.each_case(nccl_pair, training.train_plain, *cases)


@on_gpus
def test_bf16_parameters(nccl_pair: Ranks) -> None:
    """Of two ranks: three add up bf16 in an order of their own."""
    training.each_case(nccl_pair, test_training.half_precision)


@on_gpus
def test_integer_gradients_are_bit_equal(nccl_pair: Ranks) -> None:
    cases = [
        Case(optimizer="plain", method=method, partition=partition, groups=3)
        for method in ("all_reduce", "tree", "ps", "rs", "zero", "mixed")
        for partition in ("uneven", "pieces")
    ]
    training.each_case(nccl_pair, test_training.integer, *cases)


@on_gpus
@pytest.mark.parametrize("model", ["transformer", "shared"])
def test_hand_designed_strategies(nccl: Ranks, model: str) -> None:
    check_designs(nccl, model, bit_equal=True)


@on_gpus
def test_hand_designed_strategies_of_touched_rows(nccl_pair: Ranks) -> None:
    """torch's momentum of sparse gradients adds rows that stand twice in any order on CUDA, so that
    ranks which all update a table round apart."""
    check_designs(nccl_pair, "sparse_lookup", bit_equal=False)


@on_gpus
def test_hand_designed_strategies_through_host_memory(gloo: Ranks) -> None:
    check_designs(gloo, "convolutions", bit_equal=True)


def check_designs(pool: Ranks, model: str, bit_equal: bool) -> None:
    where = domain(model, pool.world, 1)
    optimizer = next(kind for name, kind in KINDS if name == model)
    cases = [
        Drawn(model, optimizer, test_random.compiled(strategy, where), name)
        for name, strategy in hand_designed(where, Space())
        if strategy.schedule.order != "ddp"
    ]
    assert len(cases) > 10
    test_random.check(pool, cases, bit_equal)


# --- what travels in place of dense sums


@on_gpus
@pytest.mark.parametrize("method", test_encodings.METHODS)
def test_halves(nccl: Ranks, method: str) -> None:
    for name in test_encodings.ROUNDING:
        results = nccl.run(test_encodings.excess, method, name)
        for worst, finer, values in results:
            assert 0 < worst <= 1
            assert finer
            assert values == results[0][2]


@on_gpus
def test_powersgd(nccl_pair: Ranks) -> None:
    for first, last, lost, bias in nccl_pair.run(test_encodings.feed_back, 60):
        assert last < 0.1 * first
        assert max(lost, bias) < 1e-3


@on_gpus
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_factors_of_layers_go_by_gloo_beside_nccl(nccl: Ranks, kind: str) -> None:
    for schedule in SCHEDULES:
        results = nccl.run(test_factors.run, kind, schedule, True, None, False)
        assert max(difference for difference, _ in results) < 2e-6
        assert all(values == results[0][1] for _, values in results)


@on_gpus
@pytest.mark.parametrize("kind", test_rows.OPTIMIZERS)
@pytest.mark.parametrize("way", list(test_rows.WAYS))
def test_touched_rows_go_by_gloo_beside_nccl(nccl_pair: Ranks, way: str, kind: str) -> None:
    check_rows(nccl_pair, way, kind)


@on_gpus
def test_touched_rows_of_three_ranks(nccl_three: Ranks) -> None:
    check_rows(nccl_three, "gathered", "momentum")


def check_rows(pool: Ranks, way: str, kind: str) -> None:
    schedule = Schedule("priority", overlap_forward=True)
    results = pool.run(test_rows.run, way, kind, schedule, True, None)
    assert max(difference for difference, _ in results) < 2e-6
    first = results[0][1]
    if way == "gathered" and kind in ("momentum", "nesterov"):
        # Every rank updates, and CUDA adds rows that stand twice in any order.
        assert all(
            abs(a - b) < 1e-6 for _, values in results for a, b in zip(values, first, strict=True)
        )
    else:
        assert all(values == first for _, values in results)


# --- between GPUs


def backend_and_device(rank: int, world: int) -> tuple[str, str]:
    return dist.get_backend(), str(HERE.device)


@between_gpus
@pytest.mark.parametrize("method", test_exact.METHODS)
def test_synchronizers_between_gpus(method: str) -> None:
    """By whatever NCCL chooses between them: NVLink, peer-to-peer over PCIe, host memory."""
    with ranks(2, way="nccl") as pool:
        assert pool.run(backend_and_device) == [("nccl", "cuda:0"), ("nccl", "cuda:1")]
        test_exact.check_exact(
            pool,
            [
                Case(method=method, partition="uneven", schedule=schedule, groups=3)
                for schedule in SCHEDULES
            ],
        )
