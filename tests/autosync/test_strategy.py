from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.documents import from_json, to_data, to_json
from autosync.errors import InvalidInput, InvalidStrategy
from autosync.extensions.staleness.document import Staleness, late_by
from autosync.strategy import (
    AllGather,
    AllReduce,
    Encoding,
    Factors,
    ParameterServer,
    Partition,
    ReduceScatter,
    Schedule,
    Strategy,
    VariableChoice,
    even_replicas,
    pieces,
    split,
    whole,
)
from autosync.torch_engine import FullyShard

STRATEGY = Strategy(
    (
        VariableChoice(
            "a",
            split((7, 4), 0, 3),
            (
                ParameterServer(1, 8, hierarchical=True, encoding=Encoding("fp16")),
                AllReduce(3, "ring", (1, 0)),
                ReduceScatter(5, sharded_update=True),
            ),
        ),
        VariableChoice("b", whole((3,)), (AllGather(9),)),
        VariableChoice("c", whole((2, 2)), (Factors(4),)),
    ),
    even_replicas(2),
    Schedule("explicit", 1024, True, (4, 3, 2, 1, 0)),
    name="by hand",
)


def test_json_and_back() -> None:
    assert from_json(Strategy, to_json(STRATEGY)) == STRATEGY


def test_returns_gradients_is_written_only_where_it_is_true() -> None:
    """So documents from before mean what they meant, and keep their identity."""
    assert "returns_gradients" not in to_json(STRATEGY)
    shards = (ParameterServer(1, 8, returns_gradients=True),)
    choice = VariableChoice("a", whole((7, 4)), shards)
    returns = replace(STRATEGY, choices=(choice, *STRATEGY.choices[1:]), schedule=Schedule())
    assert from_json(Strategy, to_json(returns)) == returns
    assert "returns_gradients" in to_json(returns)


def test_identity_ignores_the_name_and_the_numbers_of_groups() -> None:
    renamed = tuple(
        replace(c, shards=tuple(replace(s, group=s.group * 3 + 1) for s in c.shards))
        for c in STRATEGY.choices
    )
    assert replace(STRATEGY, choices=renamed, name="other").id == STRATEGY.id


def test_torch_runs_its_ddp_and_its_engines() -> None:
    assert not STRATEGY.run_by_torch
    assert replace(STRATEGY, schedule=Schedule("ddp")).run_by_torch
    assert replace(STRATEGY, engine=FullyShard(("layers",), 2)).run_by_torch


def test_identity_sees_every_choice() -> None:
    first, *rest = STRATEGY.choices
    merged = replace(rest[0], shards=(AllGather(4),))
    others = [
        replace(STRATEGY, schedule=replace(STRATEGY.schedule, overlap_forward=False)),
        replace(STRATEGY, schedule=replace(STRATEGY.schedule, slice_bytes=2048)),
        replace(STRATEGY, schedule=replace(STRATEGY.schedule, gather="when_idle")),
        STRATEGY.carrying(Staleness(1)),
        replace(STRATEGY, choices=(first, merged, rest[1])),
        replace(STRATEGY, replicas=STRATEGY.replicas[::-1]),
    ]
    assert len({STRATEGY.id, *(other.id for other in others)}) == 7


def test_documents_from_before_the_choice_of_when_to_gather_keep_text_and_identity() -> None:
    assert STRATEGY.schedule.gather == "next_forward"
    assert "gather" not in to_data(STRATEGY.schedule)
    idle = replace(STRATEGY.schedule, gather="when_idle")
    assert from_json(Schedule, to_json(idle)) == idle


@given(st.integers(1, 200), st.data())
def test_split_adds_up_and_puts_longer_shards_first(size: int, data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, size))
    cut = split((3, size), 1, parts)
    assert sum(cut.lengths) == (size if parts > 1 else 3 * size)
    assert len(cut.lengths) == parts
    assert list(cut.lengths) == sorted(cut.lengths, reverse=True)
    assert cut.lengths[0] - cut.lengths[-1] <= 1


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 3000))
def test_pieces_add_up_and_only_the_last_is_shorter(rows: int, columns: int, piece: int) -> None:
    cut = pieces((rows, columns), piece)
    assert sum(cut.lengths) == rows * columns
    assert len(set(cut.lengths[:-1])) <= 1
    assert cut.lengths[-1] <= cut.lengths[0] <= piece


@pytest.mark.parametrize(("axis", "parts"), [(2, 1), (-1, 2), (0, 8), (0, 0)])
def test_impossible_cuts_are_refused(axis: int, parts: int) -> None:
    with pytest.raises(InvalidStrategy, match="cannot cut shape"):
        split((7, 4), axis, parts)


def test_empty_shards_are_refused() -> None:
    with pytest.raises(InvalidStrategy, match="at least one"):
        Partition(0, (3, 0))
    with pytest.raises(InvalidStrategy, match="at least one"):
        Partition(0, ())


def test_each_shard_has_one_synchronizer() -> None:
    with pytest.raises(InvalidStrategy, match="3 shards but has 1"):
        VariableChoice("a", split((7, 4), 0, 3), (AllReduce(0),))


def test_positions_belong_to_the_explicit_order() -> None:
    for order, positions in (("fifo", (0,)), ("explicit", ())):
        with pytest.raises(InvalidStrategy, match="explicit order"):
            Schedule(order, positions=positions)  # type: ignore[arg-type]
    for slice_bytes in (-1, 10**100):  # more than a population's columns hold
        with pytest.raises(InvalidStrategy, match="slice_bytes"):
            Schedule(slice_bytes=slice_bytes)


def test_unknown_fields_and_kinds_are_refused() -> None:
    with pytest.raises(InvalidInput, match="colour"):
        from_json(Strategy, to_json(STRATEGY).replace('"name"', '"colour":1,"name"'))
    with pytest.raises(InvalidInput, match="telepathy"):
        from_json(Strategy, to_json(STRATEGY).replace('"kind":"factors"', '"kind":"telepathy"'))


@pytest.mark.parametrize("staleness", [-1, -3, 256])
def test_staleness_is_refused_where_a_population_could_not_hold_it(staleness: int) -> None:
    with pytest.raises(InvalidStrategy, match=f"staleness is {staleness}"):
        STRATEGY.carrying(*late_by(staleness))
    data = to_json(STRATEGY).replace('"staleness":0', f'"staleness":{staleness}')
    with pytest.raises(InvalidStrategy, match=f"staleness is {staleness}"):
        from_json(Strategy, data)


@pytest.mark.parametrize("rank", [-1, 0, 240, 256])
def test_ranks_of_powersgd_that_its_code_cannot_hold_are_refused(rank: int) -> None:
    with pytest.raises(InvalidStrategy, match=f"PowerSGD has rank {rank}"):
        Encoding("powersgd", rank)
    assert Encoding("powersgd", 239).rank == 239


def test_only_powersgd_has_a_rank() -> None:
    with pytest.raises(InvalidStrategy, match="'fp16' has rank 2"):
        Encoding("fp16", 2)
