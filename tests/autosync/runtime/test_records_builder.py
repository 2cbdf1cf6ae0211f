"""A rank's own part of a plan."""

from autosync.extensions.placement.document import PlacedModules, evenly
from autosync.extensions.placement.proposals import with_placement
from autosync.plan import Plan, compile_plans, plan_of
from autosync.population import encode
from autosync.runtime.records_builder import held_by
from autosync.search.designs.known_designs import all_reduce_5mb, ps_pieces_4mb_priority
from autosync.strategy import Strategy
from tests.placed_models import Wide, recorded

WORLD = 3
DOMAIN = recorded(Wide(), WORLD)
NAMES = tuple(variable.name for variable in DOMAIN.graph.variables)
PLACEMENT: PlacedModules = (
    evenly("table", [1]),
    evenly("block", [0, 2]),
    evenly("last", [0, 1, 2]),
)


def plan(strategy: Strategy) -> Plan:
    population = encode([strategy], DOMAIN)
    return plan_of(compile_plans(population, DOMAIN), population, 0, DOMAIN)


def test_what_all_ranks_hold_has_the_same_numbers_everywhere() -> None:
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
