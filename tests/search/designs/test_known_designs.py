import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from torch._C import _distributed_c10d as c10d

from autosync.cluster import Cluster, Device, Node
from autosync.domain import Domain, Optimizer
from autosync.graph import Variable
from autosync.search.designs import known_designs
from autosync.search.designs.building_blocks import (
    assemble,
    by_divisor,
    by_non_divisor,
    collective,
    owned,
)
from autosync.search.designs.design_table import DESIGNS, hand_designed
from autosync.search.designs.known_designs import (
    byteps_least_busy_link,
    least_busy_link,
    ps_bandwidth_weighted,
    ps_least_busy_link,
)
from autosync.search.space import Space
from autosync.strategy import (
    EXACT,
    AllGather,
    AllReduce,
    Encoding,
    Factors,
    ParameterServer,
    Strategy,
    whole,
)
from autosync.strategy import VariableChoice as Choice
from autosync.torch_engine import DDP_FIRST_BUCKET_BYTES
from autosync.verification import verify
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.search.drawn_domains import domains, spaces
from tests.simulator.worked_examples import period

LINEAR = domain_of(chain_graph(((512, 256), (512,), (640, 512), (640,)), factor_rows=8))
SPARSE = domain_of(chain_graph(((3000, 64), (64,), (128, 64)), (0,), 2), grid_cluster(2, 2))


def groups_of(strategy: Strategy) -> list[list[int]]:
    return [[shard.group for shard in choice.shards] for choice in strategy.choices]


@given(domains(), spaces)
def test_hand_designed_strategies_verify_and_ddp_is_first(domain: Domain, space: Space) -> None:
    found = hand_designed(domain, space)
    assert found[0][0] == "ddp"
    for _, strategy in found:
        verify(strategy, domain)


def test_every_design_is_built_where_all_apply() -> None:
    domain = domain_of(chain_graph(((640, 512), (64,), (3000, 64)), (2,), 2), grid_cluster(2, 2))
    assert [name for name, _ in hand_designed(domain, Space())] == list(DESIGNS)
    assert all(build.__doc__ for build in DESIGNS.values())


def test_designs_that_do_not_apply_are_skipped() -> None:
    names = {name for name, _ in hand_designed(LINEAR, Space())}
    assert not names & {"hierarchical_ps", "hierarchical_all_reduce", "hierarchical_sliced"}
    whole_updates = domain_of(LINEAR.graph, optimizer=Optimizer("lbfgs", elementwise=False))
    names = {name for name, _ in hand_designed(whole_updates, Space())}
    assert "zero1" not in names
    assert not any(name.startswith("ps_") for name in names)
    assert "byteps" in names
    assert "dear" in names


def test_the_space_and_its_pins_are_respected_except_by_ddp() -> None:
    pin = Choice("v0", whole((512, 256)), (ParameterServer(3, 0),))
    space = Space(reduce_scatter=False, priority=False, pins=(pin,))
    found = dict(hand_designed(LINEAR, space))
    assert "dear" not in found
    assert "priority_sliced" not in found
    assert isinstance(found.pop("ddp").choices[0].shards[0], AllReduce)
    for strategy in found.values():
        shard = strategy.choices[0].shards[0]
        assert replace(shard, group=0) == pin.shards[0]
        others = {s.group for choice in strategy.choices[1:] for s in choice.shards}
        assert shard.group not in others


def test_a_pin_may_lose_information_where_nothing_else_may() -> None:
    pin = Choice("v0", whole((512, 256)), (AllReduce(0, encoding=Encoding("bf16")),))
    found = dict(hand_designed(LINEAR, Space(pins=(pin,))))
    assert {"all_reduce_25mb", "dear"} <= set(found)
    del found["ddp"]
    for strategy in found.values():
        kept, *others = (choice.shards for choice in strategy.choices)
        assert [replace(shard, group=0) for shard in kept] == list(pin.shards)
        assert all(getattr(shard, "encoding", EXACT) == EXACT for own in others for shard in own)


def test_ddp_keeps_torchs_default_sizes() -> None:
    assert DDP_FIRST_BUCKET_BYTES == c10d._DEFAULT_FIRST_BUCKET_BYTES
    signature = inspect.signature(torch.nn.parallel.DistributedDataParallel.__init__)
    assert signature.parameters["bucket_cap_mb"].default in (None, 25)
    shapes = ((256, 1024), (4096, 1600), (256, 1024), (256, 1024))  # 1, 25, 1 and 1 MiB
    strategy = known_designs.ddp(domain_of(chain_graph(shapes)))
    assert groups_of(strategy) == [[0], [1], [1], [2]]
    assert strategy.schedule.slice_bytes == 25 * 2**20


def test_groups_close_at_their_limit_in_ready_order() -> None:
    domain = domain_of(chain_graph(((256, 256),) * 8))  # 256 KiB each
    grouped = assemble(domain, collective(domain, AllReduce(0)), limit_bytes=3 << 18)
    assert groups_of(grouped) == [[0], [0], [1], [1], [1], [2], [2], [2]]
    counted = assemble(domain, collective(domain, AllReduce(0)), limit_shards=5)
    assert groups_of(counted) == [[0]] * 3 + [[1]] * 5
    alone = assemble(domain, collective(domain, AllReduce(0)))
    assert groups_of(alone) == [[i] for i in range(8)]


HALVED = ("reduce_scatter_25mb", "dear", "dear_sliced", "dear_idle", "zero1", "zero1_overlap")


@pytest.mark.parametrize("name", HALVED)
@pytest.mark.parametrize(
    ("first", "groups"),
    [
        ((96, 96), [[0], [0], [1]]),  # 36 KB stay over behind two groups of 25 MiB
        ((1, 819_199), [[0], [0], [1]]),  # 4 bytes below an eighth of 25 MiB, which is 3,276,800
        ((1, 819_200), [[0], [1], [2]]),
    ],
)
def test_reduce_scatter_designs_leave_no_tiny_group(
    name: str, first: tuple[int, int], groups: list[list[int]]
) -> None:
    domain = domain_of(chain_graph((first, (2560, 2560), (2560, 2560))))
    assert groups_of(getattr(known_designs, name)(domain)) == groups
    assert groups_of(known_designs.all_reduce_25mb(domain)) == [[0], [1], [2]]


def test_a_tiny_group_without_a_neighbour_stays() -> None:
    domain = domain_of(chain_graph(((96, 96), (100, 64)), sparse=(1,)))
    assert groups_of(known_designs.dear(domain)) == [[0], [1]]


@pytest.mark.parametrize(
    ("rows", "divisor", "non_divisor"),
    [(6, 2, 4), (9, 3, 2), (7, 7, 2), (2, 2, 1), (1, 1, 1), (97, 1, 2)],
)
def test_partitions_of_autodist(rows: int, divisor: int, non_divisor: int) -> None:
    variable = Variable("v", (rows, 3))
    assert len(by_divisor(variable).lengths) == divisor
    assert len(by_non_divisor(variable).lengths) == non_divisor


def test_owners_take_the_fewest_bytes_first_or_their_part_by_bandwidth() -> None:
    def owners(domain: Domain, by_bandwidth: bool) -> list[int]:
        choices = owned(domain, list(range(len(domain.graph.variables))), by_bandwidth=by_bandwidth)
        shards = (choices[i].shards[0] for i in range(len(choices)))
        return [shard.server for shard in shards if isinstance(shard, ParameterServer)]

    falling = chain_graph(((100,), (60,), (50,), (30,), (10,)))
    assert owners(domain_of(falling, grid_cluster(2)), False) == [0, 1, 1, 0, 1]
    uneven = domain_of(chain_graph(((64, 64),) * 30), grid_cluster(2, 1, (2.0, 1.0)))
    assert owners(uneven, True).count(0) == 20


def test_poseidons_rule() -> None:
    # K(P-1)(M+N) < MN(P1+P2-2)/P2: with 4 workers and servers 2K*3*(M+N) < 3MN.
    def kind(rows: int) -> type:
        graph = chain_graph(((100, 300),), factor_rows=rows)
        return type(known_designs.poseidon(domain_of(graph)).choices[0].shards[0])

    assert kind(37) is Factors  # 2*37*3*400 = 88,800 < 90,000
    assert kind(38) is ParameterServer  # 91,200


def test_parallax_sends_sparse_gradients_to_owners() -> None:
    first, *others = known_designs.parallax(SPARSE).choices
    assert isinstance(first.shards[0], ParameterServer)
    assert all(isinstance(choice.shards[0], AllReduce) for choice in others)
    gathered = known_designs.all_reduce_25mb(SPARSE).choices[0]
    assert isinstance(gathered.shards[0], AllGather)


def test_random_axis_depends_on_its_seed_only() -> None:
    drawn = [known_designs.random_axis_partition_ar(LINEAR, seed) for seed in (1, 1, 2, 3, 4)]
    assert drawn[0] == drawn[1]
    assert len({strategy.id for strategy in drawn}) > 1


def test_proportional_shares_join_where_the_space_allows_them() -> None:
    nodes = (Node("a", (Device("v100"),), 1.0), Node("b", (Device("v100", slowdown=3.0),), 1.0))
    domain = domain_of(LINEAR.graph, Cluster("mixed", nodes))
    names = {name for name, _ in hand_designed(domain, Space(uneven_shares=True))}
    assert "all_reduce_25mb_proportional" in names
    assert not any(name.endswith("_proportional") for name, _ in hand_designed(domain, Space()))


def shares(gbps: tuple[float, ...]) -> list[float]:
    """Of the bytes, that each rank owns; the pieces are equal."""
    domain = domain_of(chain_graph(((1024, 1024),) * 60), grid_cluster(len(gbps), 1, gbps))
    chosen = least_busy_link(domain)
    owners = [s.server for c in chosen.values() for s in c.shards if isinstance(s, ParameterServer)]
    return [float(n) / len(owners) for n in np.bincount(owners, minlength=len(gbps))]


def test_a_share_makes_all_links_equally_busy() -> None:
    """A link of rate b is held for (1 + (P - 2) x) / b by a share x, in each direction."""
    assert shares((1.0, 1.0, 1.0, 1.0)) == [0.25] * 4
    found = shares((1.0, 1.0, 0.75, 0.75))  # (1 + 2x) / 1 = (1 + 2y) / 0.75, 2x + 2y = 1
    assert np.allclose(found, [5 / 14, 5 / 14, 2 / 14, 2 / 14], atol=0.02)
    assert shares((2.0, 2.0, 2.0, 1.0))[3] == 0.0  # a slow node owns nothing


def test_it_beats_owners_in_proportion_to_bandwidth() -> None:
    nodes = [
        Node(f"10.0.0.{i}", (Device("cpu"),), rate, 20.0) for i, rate in enumerate((2, 2, 2, 1))
    ]
    domain = domain_of(chain_graph(((1024, 1024),) * 40), Cluster("uneven", tuple(nodes)))
    both = [ps_bandwidth_weighted(domain), ps_least_busy_link(domain)]
    for strategy in both:
        verify(strategy, domain)
    weighted, placed = period(domain, *both)
    assert placed < 0.9 * weighted


def test_returned_gradients_need_not_wait_for_the_end_of_backward() -> None:
    graph = chain_graph(((1024, 1024),) * 40)
    cluster = grid_cluster(4, 1, (20.0, 20.0, 20.0, 10.0))
    domain = domain_of(graph, cluster, operation_seconds=1e-3)  # 120 ms, beside 134 each way
    both = [ps_least_busy_link(domain), byteps_least_busy_link(domain)]
    values, gradients = period(domain, *both)
    assert gradients < values
