"""Which modules a domain's variables let `fully_shard` gather one by one."""

from dataclasses import replace

import pytest

from autosync.errors import NotSupported
from autosync.graph import ModelGraph
from autosync.simulator.sharded_strategy import held_units
from tests.domains import domain_of, layered_graph


def by_module(*reads: tuple[int, ...]) -> ModelGraph:
    """Operation i runs in the module of variable i. reads: what each reads; its own by default."""
    graph = layered_graph()
    operations = tuple(
        replace(operation, name=f"{variable.name.rpartition('.')[0]}.linear", variables=own)
        for operation, variable, own in zip(
            graph.operations, graph.variables, reads or ((0,), (1,), (2,), (3,), (4,)), strict=True
        )
    )
    return replace(graph, operations=operations)


def test_every_block_is_a_unit() -> None:
    blocks = ("layers.0", "layers.1", "layers.2")
    assert held_units(domain_of(layered_graph())) == blocks
    assert held_units(domain_of(by_module())) == blocks


def test_blocks_that_share_a_weight_stay_in_the_root() -> None:
    tied = by_module((0,), (1,), (1, 2), (3,), (4,))
    assert held_units(domain_of(tied)) == ("layers.2",)
    with_head = by_module((0,), (1,), (2,), (3,), (3, 4))
    assert held_units(domain_of(with_head)) == ("layers.0", "layers.1")
    all_tied = by_module((0,), (1,), (1, 2), (1, 3), (4,))
    with pytest.raises(NotSupported, match="tell no modules with weights of their own"):
        held_units(domain_of(all_tied))


def test_what_the_model_itself_reads_is_not_tied() -> None:
    graph = by_module()
    penalty = replace(graph.operations[-1], name="add", variables=(0, 1, 2, 3, 4))
    added = replace(graph, operations=(*graph.operations[:-1], penalty))
    assert held_units(domain_of(added)) == ("layers.0", "layers.1", "layers.2")


def test_what_is_never_called_stays_in_the_root() -> None:
    graph = replace(by_module(), uncalled=("layers", "layers.1"))
    assert held_units(domain_of(graph)) == ("layers.0", "layers.2")


def test_frozen_parameters_are_left_to_the_job_itself() -> None:
    """A rank gathers them as well, which is in no prediction and no replayed trial."""
    adapters = domain_of(replace(layered_graph(), frozen_bytes=14 * 10**9))
    with pytest.raises(NotSupported, match="14 GB of frozen parameters") as refused:
        held_units(adapters)
    assert "autosync.tune" in refused.value.remedy
    table = domain_of(replace(layered_graph(), frozen_bytes=100))
    assert held_units(table) == held_units(domain_of(layered_graph()))
