from autosync.search.designs.horovod import horovod_strategy
from tests.domains import chain_graph, domain_of, grid_cluster

DOMAIN = domain_of(chain_graph(((256, 256),) * 8), grid_cluster(4, 1, 1.0))
"""Backward takes 2 ms an operation; 256 KiB take 3 ms."""


def messages(fusion_bytes: int) -> list[int]:
    """The size of each message in variables, in gradient-ready order, which groups follow."""
    strategy = horovod_strategy(DOMAIN, fusion_bytes)
    groups = [strategy.choices[index].shards[0].group for index in DOMAIN.graph.gradient_order]
    sizes = [groups.count(group) for group in dict.fromkeys(groups)]
    assert [group for group in dict.fromkeys(groups) for _ in range(groups.count(group))] == groups
    return sizes


def test_a_cycle_takes_what_has_become_ready_during_the_one_before() -> None:
    sizes = messages(2**30)
    assert sizes[0] == 1, "the first cycle finds one gradient"
    assert sizes[1] == 2, "5 ms later two more are ready"
    assert sum(sizes) == 8


def test_a_buffer_holds_no_more_than_its_bytes() -> None:
    assert max(messages(2 * 256 * 256 * 4)) == 2
    assert messages(256 * 256 * 4) == [1] * 8
    assert messages(1) == [1] * 8, "a larger tensor goes alone"
