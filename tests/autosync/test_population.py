from dataclasses import replace

import numpy as np
import pytest

from autosync.codes import Method, Order
from autosync.errors import InvalidInput, InvalidStrategy
from autosync.extensions.staleness.document import Staleness
from autosync.population import (
    BY_ROW,
    BY_STRATEGY,
    MOST_LAYOUTS,
    Option,
    concatenate,
    decode,
    encode,
)
from autosync.strategy import (
    AllGather,
    AllReduce,
    Encoding,
    Factors,
    ParameterServer,
    ReduceScatter,
    Replica,
    Schedule,
    Strategy,
    VariableChoice,
    even_replicas,
    pieces,
    split,
    whole,
)
from tests.domains import chain_graph, domain_of, grid_cluster

DOMAIN = domain_of(chain_graph(((7, 4), (3, 5), (2, 2)), (1,), 2), grid_cluster(2))

RICH = Strategy(
    (
        VariableChoice(
            "v0",
            split((7, 4), 0, 3),
            (
                ParameterServer(1, 0, hierarchical=True, encoding=Encoding("powersgd", 2)),
                AllReduce(1, "ring", (1, 0)),
                ReduceScatter(2, sharded_update=True),
            ),
        ),
        VariableChoice("v1", whole((3, 5)), (AllGather(3),)),
        VariableChoice("v2", whole((2, 2)), (Factors(4),)),
    ),
    (Replica(0, 0.25), Replica(1, 0.75)),
    Schedule("explicit", 1024, True, (4, 3, 2, 1, 0)),
    extensions=(Staleness(1),),
)
PLAIN = Strategy(
    tuple(
        VariableChoice(variable.name, pieces(variable.shape, 3), shards)
        for variable in DOMAIN.graph.variables
        for shards in [(AllReduce(0),) * len(pieces(variable.shape, 3).lengths)]
    ),
    even_replicas(2),
)


def test_encode_lays_strategies_out_as_rows() -> None:
    population = encode([PLAIN, RICH], DOMAIN)
    assert population.first.tolist() == [0, 17, 22]
    assert population.parts.tolist() == [[10, 5, 2], [3, 1, 1]]
    assert population.axis.tolist() == [[-1, -1, -1], [0, -1, -1]]
    assert population.variable[17:].tolist() == [0, 0, 0, 1, 2]
    assert population.length[17:].tolist() == [3, 2, 2, 15, 4]
    assert population.method[17:].tolist() == [0, 1, 2, 3, 4]
    assert population.server[17:].tolist() == [1, -1, -1, -1, -1]
    assert population.position[17:].tolist() == [4, 3, 2, 1, 0]
    assert population.order.tolist() == [Order.FIFO, Order.EXPLICIT]
    assert [population.extensions[c] for c in population.extension] == [(), (Staleness(1),)]
    options = [population.options[code] for code in population.option[17:]]
    assert options[0] == Option(hierarchical=True, encoding=Encoding("powersgd", 2))
    assert options[1] == Option(device_order=(1, 0))
    assert options[2] == Option(sharded_update=True)


def test_decode_is_the_inverse_of_encode() -> None:
    population = encode([PLAIN, RICH], DOMAIN)
    assert [decode(population, i, DOMAIN) for i in range(2)] == [PLAIN, RICH]


def test_groups_are_renumbered_by_first_appearance() -> None:
    choices = tuple(
        replace(c, shards=tuple(replace(s, group=1000 - s.group) for s in c.shards))
        for c in RICH.choices
    )
    again = decode(encode([replace(RICH, choices=choices)], DOMAIN), 0, DOMAIN)
    assert again == RICH


def test_an_empty_population() -> None:
    population = encode([], DOMAIN)
    assert (len(population), population.rows, population.axis.shape) == (0, 0, (0, 3))


def test_take_picks_strategies_in_order() -> None:
    population = encode([PLAIN, RICH, PLAIN.carrying(Staleness(3))], DOMAIN)
    taken = population.take([2, 1, 1])
    assert [decode(taken, i, DOMAIN) for i in range(3)] == [
        PLAIN.carrying(Staleness(3)),
        RICH,
        RICH,
    ]
    assert len(population.take([])) == 0


def test_between_is_what_take_picks_of_neighbours() -> None:
    population = encode([PLAIN, RICH, PLAIN.carrying(Staleness(3)), RICH], DOMAIN)
    for start, stop in ((0, 4), (1, 3), (2, 2)):
        part, taken = population.between(start, stop), population.take(range(start, stop))
        for name in ("first", *BY_STRATEGY, *BY_ROW):
            np.testing.assert_array_equal(getattr(part, name), getattr(taken, name))


def test_concatenate_merges_the_tables() -> None:
    joined = concatenate([encode([RICH], DOMAIN), encode([PLAIN], DOMAIN), encode([], DOMAIN)])
    assert [decode(joined, i, DOMAIN) for i in range(2)] == [RICH, PLAIN]
    assert len(set(joined.options)) == len(joined.options) == 4
    assert len(joined.layouts) == 2
    assert joined.method.dtype == np.uint8
    assert set(joined.method) == set(Method)


def test_populations_of_different_graphs_do_not_join() -> None:
    other = domain_of(chain_graph(((2,),)))
    alone = Strategy((VariableChoice("v0", whole((2,)), (AllReduce(0),)),), even_replicas(4))
    with pytest.raises(InvalidInput, match="all of one graph"):
        concatenate([encode([RICH], DOMAIN), encode([alone], other)])
    with pytest.raises(InvalidInput, match="at least one"):
        concatenate([])


def test_more_layouts_of_shares_than_a_population_numbers_are_refused() -> None:
    shares = [(each + 1) / 1024 for each in range(MOST_LAYOUTS + 1)]
    uneven = [
        replace(PLAIN, replicas=(Replica(0, share), Replica(1, 1.0 - share))) for share in shares
    ]
    full = encode(uneven[:-1], DOMAIN)
    assert decode(full, MOST_LAYOUTS - 1, DOMAIN) == uneven[-2]
    with pytest.raises(InvalidInput, match="257 different layouts of shares"):
        encode(uneven, DOMAIN)
    with pytest.raises(InvalidInput, match="257 different layouts of shares"):
        concatenate([full, encode(uneven[-1:], DOMAIN)])


def test_a_strategy_for_another_graph_is_refused() -> None:
    with pytest.raises(InvalidStrategy, match="missing: v2"):
        encode([replace(RICH, choices=RICH.choices[:2])], DOMAIN)
    with pytest.raises(InvalidStrategy, match="different: the order"):
        encode([replace(RICH, choices=RICH.choices[::-1])], DOMAIN)
