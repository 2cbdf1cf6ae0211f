"""Plans of placed modules: whose messages are whose, a rank's part, and which rows go where."""

from itertools import pairwise

import pytest

from autosync.bundle import make_bundle, with_extension
from autosync.codes import Channel, Op
from autosync.errors import InvalidStrategy
from autosync.extensions.placement.document import (
    PlacedModules,
    Placement,
    dealt_rows,
    evenly,
    modules_of,
)
from autosync.extensions.placement.proposals import with_placement
from autosync.extensions.placement.row_exchange import RowRoute, route_between
from autosync.plan import Plan, compile_plans, plan_of
from autosync.population import decode, encode
from autosync.runtime.records_builder import held_by
from autosync.search.designs.known_designs import (
    all_reduce_5mb,
    all_reduce_per_variable,
    dear,
    ps_pieces_4mb_priority,
)
from autosync.search.designs.torch_engines import fsdp2
from autosync.strategy import Strategy
from tests.placed_models import Wide, recorded

WORLD = 3
DOMAIN = recorded(Wide(), WORLD)
NAMES = tuple(variable.name for variable in DOMAIN.graph.variables)
PLACED = with_placement(
    all_reduce_per_variable(DOMAIN), DOMAIN, (evenly("block", [0, 2]), evenly("table", [1]))
)

PLACEMENT: PlacedModules = (
    evenly("table", [1]),
    evenly("block", [0, 2]),
    evenly("last", [0, 1, 2]),
)


def plan(strategy: Strategy) -> Plan:
    population = encode([strategy], DOMAIN)
    return plan_of(compile_plans(population, DOMAIN), population, 0, DOMAIN)


def test_ranks_that_hold_a_module_synchronize_it_behind_all_others() -> None:
    made = plan(PLACED)
    teams = [made.teams[message.teams] for message in made.messages]
    assert teams[-2:] == [((0, 2),), ((1,),)]
    assert all(team == ((0, 1, 2),) for team in teams[:-2])
    assert [m.channel for m in made.messages[-2:]] == [Channel.LOCAL_REDUCE] * 2
    assert all(message.operation is Op.ALL_REDUCE for message in made.messages)
    assert modules_of(made) == modules_of(PLACED)


def test_a_bundle_takes_no_placement_that_its_messages_do_not_have() -> None:
    plain = make_bundle(all_reduce_5mb(DOMAIN), DOMAIN)
    with pytest.raises(InvalidStrategy, match="'placement' changes a plan's messages"):
        with_extension(plain, Placement(PLACEMENT))


def test_messages_still_wait_for_what_they_waited_for() -> None:
    placed = plan(with_placement(dear(DOMAIN), DOMAIN, (evenly("block", [0, 2]),)))
    for index, message in enumerate(placed.messages):
        if message.after >= 0:
            before = placed.messages[message.after]
            assert message.after < index
            assert before.bucket == message.bucket
            assert before.operation is Op.REDUCE_SCATTER


def test_others_in_the_same_population_stay_as_they_are() -> None:
    alone = [dear(DOMAIN), all_reduce_per_variable(DOMAIN), fsdp2(DOMAIN)]
    both = encode([alone[0], PLACED, alone[1], alone[2]], DOMAIN)
    plans = compile_plans(both, DOMAIN)
    found = [plan_of(plans, both, index, DOMAIN) for index in range(4)]
    assert found == [plan(alone[0]), plan(PLACED), plan(alone[1]), plan(alone[2])]
    assert decode(both, 1, DOMAIN).id == PLACED.id


def test_variables_of_all_ranks_have_the_same_numbers_everywhere() -> None:
    made = plan(with_placement(ps_pieces_4mb_priority(DOMAIN), DOMAIN, PLACEMENT))
    parts = [held_by(made, NAMES, rank) for rank in range(WORLD)]
    common = [name for name in NAMES if not name.startswith(("table.", "block."))]
    shared = [m for m in made.messages if all(len(t) == WORLD for t in made.teams[m.teams])]
    assert shared
    for part in parts:
        assert list(part.names[: len(common)]) == common
        assert part.plan.messages[: len(shared)] == parts[0].plan.messages[: len(shared)]
        assert all(ranks == (0, 1, 2) for ranks in part.holders[: len(common)])
    own = [set(part.names) - set(common) for part in parts]
    block = {name for name in NAMES if name.startswith("block.")}
    assert own == [block, {"table.weight"}, block]
    for part, names, holders in zip(parts, own, ((0, 2), (1,), (0, 2)), strict=True):
        assert {part.names[index] for index in part.held_by_some} == names
        assert {part.holders[index] for index in part.held_by_some} == {holders}
        assert [NAMES[place] for place in part.variables] == list(part.names)


def test_every_element_of_a_held_variable_is_in_a_bucket() -> None:
    made = plan(with_placement(all_reduce_5mb(DOMAIN), DOMAIN, PLACEMENT))
    sizes = {variable.name: variable.elements for variable in DOMAIN.graph.variables}
    for rank in range(WORLD):
        part = held_by(made, NAMES, rank)
        found = dict.fromkeys(part.names, 0)
        for pieces in part.plan.buckets:
            for piece in pieces:
                variable = part.plan.shards[piece.shard].variable
                found[part.names[variable]] += piece.stop - piece.start
        assert found == {name: sizes[name] for name in part.names}
        used = {message.bucket for message in part.plan.messages}
        assert used == set(range(len(part.plan.buckets)))


def test_plans_without_placed_modules_stay_whole() -> None:
    made = plan(all_reduce_5mb(DOMAIN))
    part = held_by(made, NAMES, 1)
    assert part.plan is made
    assert part.names == NAMES
    assert not part.held_by_some


DIVISIONS = [
    ((4, 4), (0, 8)),
    ((5, 3), (2, 6)),
    ((5, 3, 2), (0, 7, 3)),
    ((0, 4, 1), (5, 0, 0)),
    ((1, 1, 1), (1, 1, 1)),
]


@pytest.mark.parametrize(("source", "target"), DIVISIONS)
def test_rows_keep_their_order_and_come_back(
    source: tuple[int, ...], target: tuple[int, ...]
) -> None:
    ranks = range(len(source))
    routes = [route_between(source, target, rank) for rank in ranks]
    edges = [sum(source[:rank]) for rank in range(len(source) + 1)]
    rows = [list(range(start, stop)) for start, stop in pairwise(edges)]
    assert dealt(rows, routes) == [
        list(range(sum(target[:rank]), sum(target[: rank + 1]))) for rank in ranks
    ]
    back = [route.back for route in routes]
    assert dealt(dealt(rows, routes), back) == rows
    assert back == [route_between(target, source, rank) for rank in ranks]


def dealt(rows: list[list[int]], routes: list[RowRoute]) -> list[list[int]]:
    """What an all-to-all with these counts leaves on every rank."""
    found: list[list[int]] = []
    for receiver in range(len(rows)):
        got: list[int] = []
        for sender, own in enumerate(rows):
            start = sum(routes[sender].sent[:receiver])
            sent = own[start : start + routes[sender].sent[receiver]]
            assert len(sent) == routes[receiver].received[sender]
            got += sent
        found.append(got)
    return found


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 64])
@pytest.mark.parametrize("shares", [(1.0,), (0.5, 0.5), (0.1, 0.2, 0.7), (1 / 3,) * 3])
def test_shares_deal_every_row(shares: tuple[float, ...], rows: int) -> None:
    found = dealt_rows(shares, rows)
    assert sum(found) == rows
    assert all(abs(count - share * rows) <= 1 for count, share in zip(found, shares, strict=True))
