from dataclasses import replace

import pytest

from autosync.bundle import Bundle, make_bundle
from autosync.cluster import Cluster, Device, Node
from autosync.documents import from_data, to_data
from autosync.domain import Domain, Optimizer
from autosync.errors import InvalidStrategy, NotSupported
from autosync.extensions.staleness.document import Staleness
from autosync.population import encode
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import (
    AllGather,
    AllReduce,
    Encoding,
    Factors,
    ParameterServer,
    Partition,
    ReduceScatter,
    Replica,
    Schedule,
    Strategy,
    Synchronizer,
    VariableChoice,
    even_replicas,
    pieces,
    split,
    whole,
)
from autosync.verification import verify
from tests.domains import chain_graph, domain_of, grid_cluster

SHAPES = ((64, 32), (64,), (10, 128))
WHOLE, HALVES = whole(SHAPES[0]), split(SHAPES[0], 0, 2)
DOMAIN = domain_of(chain_graph(SHAPES, factor_rows=4), grid_cluster(2, 2))
SPARSE = domain_of(chain_graph(SHAPES, (0,)), grid_cluster(2, 2))


def plain(domain: Domain = DOMAIN) -> Strategy:
    """Every variable whole; sparse ones gathered, the others all-reduced, each on its own."""
    choices = tuple(
        VariableChoice(
            variable.name,
            whole(variable.shape),
            (AllGather(index) if variable.sparse else AllReduce(index),),
        )
        for index, variable in enumerate(domain.graph.variables)
    )
    return Strategy(choices, even_replicas(domain.world_size))


def with_choice(
    index: int, partition: Partition, *shards: Synchronizer, domain: Domain = DOMAIN
) -> Strategy:
    """`plain` with another choice for one variable; one synchronizer stands for all shards."""
    strategy = plain(domain)
    if len(shards) == 1:
        shards = shards * len(partition.lengths)
    choices = list(strategy.choices)
    choices[index] = VariableChoice(choices[index].variable, partition, shards)
    return replace(strategy, choices=tuple(choices))


def refused(strategy: Strategy, words: str, domain: Domain = DOMAIN) -> InvalidStrategy:
    with pytest.raises(InvalidStrategy, match=words) as caught:
        verify(strategy, domain)
    return caught.value


@pytest.mark.parametrize(
    ("domain", "partition", "shard"),
    [
        (DOMAIN, WHOLE, AllReduce(0)),
        (DOMAIN, WHOLE, AllReduce(0, "tree")),
        (DOMAIN, WHOLE, AllReduce(0, "hierarchical")),
        (DOMAIN, WHOLE, AllReduce(0, "ring", (2, 0, 3, 1))),
        (DOMAIN, split((64, 32), 1, 5), ReduceScatter(0)),
        (DOMAIN, split((64, 32), 0, 7), ReduceScatter(0, sharded_update=True)),
        (DOMAIN, pieces((64, 32), 1000), ParameterServer(3, 0)),
        (DOMAIN, WHOLE, ParameterServer(0, 0, hierarchical=True)),
        (DOMAIN, split((64, 32), 0, 3), ParameterServer(0, 0, returns_gradients=True)),
        (DOMAIN, WHOLE, Factors(0)),
        (SPARSE, WHOLE, AllGather(0)),
        (SPARSE, WHOLE, ParameterServer(1, 0)),
        (SPARSE, split((64, 32), 0, 3), ParameterServer(1, 0)),
    ],
)
def test_sound_choices_pass(domain: Domain, partition: Partition, shard: Synchronizer) -> None:
    verify(with_choice(0, partition, shard, domain=domain), domain)


@pytest.mark.parametrize(
    ("domain", "partition", "shard", "words"),
    [
        (DOMAIN, Partition(-1, (2047,)), AllReduce(0), "has 2048 elements, but .* add up to 2047"),
        (DOMAIN, Partition(1, (16, 17)), AllReduce(0), "32 along axis 1, but .* add up to 33"),
        (DOMAIN, Partition(2, (1,)), AllReduce(0), "no axis 2"),
        (DOMAIN, Partition(-2, (1,)), AllReduce(0), "no axis -2"),
        (DOMAIN, WHOLE, ParameterServer(4, 0), "server 4, of servers 0 to 3"),
        (DOMAIN, WHOLE, ParameterServer(-1, 0), "server -1"),
        (DOMAIN, WHOLE, AllGather(0), "dense gradient"),
        (DOMAIN, HALVES, Factors(0), "by factors, but not whole"),
        (DOMAIN, WHOLE, AllReduce(0, "ring", (0, 1, 2)), "visit each of 4 ranks once"),
        (DOMAIN, WHOLE, AllReduce(0, "tree", (0, 1, 2, 3)), "its all-reduce is tree"),
        (DOMAIN, WHOLE, AllReduce(-1), "group -1"),
        (DOMAIN, WHOLE, AllReduce(0, encoding=Encoding("fp16")), "sent as fp16, which loses"),
        (DOMAIN, WHOLE, ReduceScatter(0, encoding=Encoding("bf16")), "sent as bf16"),
        (DOMAIN, WHOLE, ReduceScatter(0, encoding=Encoding("powersgd", 2)), "a ring all_red"),
        (DOMAIN, HALVES, AllReduce(0, encoding=Encoding("powersgd", 2)), "no whole matrix"),
        (DOMAIN, WHOLE, AllReduce(0, "tree", encoding=Encoding("powersgd", 2)), "a ring all_red"),
        (SPARSE, split((64, 32), 1, 2), ParameterServer(0, 0), "cut along axis 0 only"),
        (SPARSE, pieces((64, 32), 1000), ParameterServer(0, 0), "cut along axis 0 only"),
        (SPARSE, Partition(1, (32,)), ParameterServer(0, 0), "cut along axis 0 only"),
        (SPARSE, WHOLE, AllReduce(0), "which all_reduce cannot carry"),
        (SPARSE, WHOLE, ReduceScatter(0), "which reduce_scatter cannot carry"),
        (SPARSE, HALVES, AllGather(0), "gathered, but not whole"),
        (SPARSE, WHOLE, ParameterServer(0, 0, returns_gradients=True), "returns as values"),
    ],
)
def test_unsound_choices_are_refused_by_name(
    domain: Domain, partition: Partition, shard: Synchronizer, words: str
) -> None:
    error = refused(with_choice(0, partition, shard, domain=domain), words, domain)
    assert "'v0'" in error.message
    assert error.thing.startswith("variable v0")


def test_factors_belong_to_linear_layers() -> None:
    refused(with_choice(1, whole((64,)), Factors(9)), "'v1' is no linear layer's weight")


def test_lossy_encodings_pass_where_they_are_allowed() -> None:
    for encoding in (Encoding("fp16"), Encoding("bf16"), Encoding("powersgd", 2)):
        strategy = with_choice(0, WHOLE, AllReduce(0, encoding=encoding))
        verify(strategy, DOMAIN, allow_lossy=True)


def test_an_explicit_ring_is_refused_on_nccl() -> None:
    nccl = domain_of(DOMAIN.graph, replace(DOMAIN.cluster, backend="nccl"))
    strategy = with_choice(0, WHOLE, AllReduce(0, "ring", (0, 1, 2, 3)))
    refused(strategy, "NCCL picks its own topology", nccl)


@pytest.mark.parametrize("shard", [AllReduce(0, "hierarchical"), ParameterServer(0, 0, True)])
def test_hierarchy_needs_a_node_of_several_ranks(shard: Synchronizer) -> None:
    flat = domain_of(DOMAIN.graph, grid_cluster(4, 1))
    refused(with_choice(0, WHOLE, shard), "no node of 'grid' has several ranks", flat)


@pytest.mark.parametrize("shard", [ParameterServer(0, 0), ReduceScatter(0, sharded_update=True)])
def test_owner_and_sharded_updates_need_an_elementwise_optimizer(shard: Synchronizer) -> None:
    domain = domain_of(DOMAIN.graph, DOMAIN.cluster, optimizer=Optimizer("lbfgs", False))
    refused(with_choice(0, WHOLE, shard), "'lbfgs' is not elementwise", domain)
    verify(with_choice(0, WHOLE, ReduceScatter(0)), domain)
    verify(with_choice(0, WHOLE, ParameterServer(0, 0, returns_gradients=True)), domain)


def test_dedicated_server_hosts_can_be_predicted_but_not_run() -> None:
    nodes = (*DOMAIN.cluster.nodes, Node("server", (Device("cpu"),), 1.0, server_only=True))
    domain = domain_of(DOMAIN.graph, Cluster("with server", nodes))
    strategy = with_choice(0, WHOLE, ParameterServer(4, 0))
    verify(strategy, domain)
    assert TimelineSimulator().predict(domain, encode([strategy], domain))[0] > 0
    with pytest.raises(NotSupported, match="variable 'v0' is owned by server 4, a dedicated"):
        make_bundle(strategy, domain)
    by_rank = make_bundle(with_choice(0, WHOLE, ParameterServer(3, 0)), domain)
    smuggled = to_data(by_rank) | {"strategy": to_data(strategy)}
    with pytest.raises(NotSupported, match="'v0' is owned by server 4"):
        from_data(Bundle, smuggled)
    refused(with_choice(0, WHOLE, ParameterServer(5, 0)), "of servers 0 to 4", domain)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (AllReduce(5), ReduceScatter(5)),
        (AllReduce(5), AllReduce(5, "tree")),
        (ParameterServer(0, 5), ParameterServer(1, 5)),
        (ReduceScatter(5), ReduceScatter(5, sharded_update=True)),
    ],
)
def test_members_of_a_group_must_agree(first: Synchronizer, second: Synchronizer) -> None:
    strategy = with_choice(0, HALVES, first, second)
    refused(strategy, "shares group 5 with 'v0', but differs")


def test_members_of_a_group_must_agree_in_type() -> None:
    variables = (replace(DOMAIN.graph.variables[0], dtype="bfloat16"), *DOMAIN.graph.variables[1:])
    domain = domain_of(replace(DOMAIN.graph, variables=variables), DOMAIN.cluster)
    verify(with_choice(1, whole((64,)), AllReduce(1)), domain)
    refused(with_choice(1, whole((64,)), AllReduce(0)), "'v1' shares group 0 with 'v0'", domain)


def test_members_of_a_group_must_agree_in_sparsity() -> None:
    owned = with_choice(0, WHOLE, ParameterServer(1, 9), domain=SPARSE)
    mixed = replace(
        owned,
        choices=(
            owned.choices[0],
            replace(owned.choices[1], shards=(ParameterServer(1, 9),)),
            *owned.choices[2:],
        ),
    )
    verify(owned, SPARSE)
    refused(mixed, "'v1' shares group 9 with 'v0'", SPARSE)


def test_touched_rows_and_factors_share_no_group() -> None:
    graph = chain_graph(SHAPES, (0,), factor_rows=4)
    both = domain_of(graph, grid_cluster(2, 2))
    apart = with_choice(2, whole((10, 128)), Factors(7), domain=both)
    verify(apart, both)
    together = with_choice(2, whole((10, 128)), Factors(0), domain=both)
    refused(together, "'v2' shares group 0 with 'v0', but differs from it in method", both)


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        (even_replicas(3), "ranks 0 to 3"),
        ((*even_replicas(4), Replica(3, 0.25)), "each holds one replica"),
        (tuple(Replica(rank, 0.3) for rank in range(4)), "add up to 1.2"),
        ((Replica(0, 1.5), Replica(1, -0.5), Replica(2, 0.0), Replica(3, 0.0)), "positive"),
        (tuple(Replica(rank, float("nan")) for rank in range(4)), "add up to nan"),
    ],
)
def test_replicas_cover_the_cluster_once(replicas: tuple[Replica, ...], words: str) -> None:
    refused(replace(plain(), replicas=replicas), words)


def test_uneven_shares_pass() -> None:
    shares = (0.1, 0.2, 0.3, 0.4)
    replicas = tuple(Replica(rank, share) for rank, share in enumerate(shares))
    verify(replace(plain(), replicas=replicas), DOMAIN)


def test_staleness_is_refused_unless_allowed() -> None:
    stale = served().carrying(Staleness(2))
    assert "staleness 0" in refused(stale, "lag 2 iterations").remedy
    verify(stale, DOMAIN, allow_inexact=True)
    on_nccl = domain_of(DOMAIN.graph, replace(DOMAIN.cluster, backend="nccl"))
    lagging(served(), on_nccl, "messages occupy a device")


def served() -> Strategy:
    strategy = plain()
    choices = (replace(one, shards=(ParameterServer(1, 0),)) for one in strategy.choices)
    return replace(strategy, choices=tuple(choices))


def lagging(strategy: Strategy, domain: Domain, words: str) -> None:
    with pytest.raises(InvalidStrategy, match=words) as caught:
        verify(strategy.carrying(Staleness(2)), domain, allow_lossy=True, allow_inexact=True)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "shard",
    [
        AllReduce(0),
        ParameterServer(0, 0, hierarchical=True),
        ParameterServer(0, 0, returns_gradients=True),
        ParameterServer(0, 0, encoding=Encoding("bf16")),
    ],
)
def test_synchronizers_that_cannot_lag_are_refused_by_name(shard: Synchronizer) -> None:
    strategy = with_choice(0, WHOLE, shard)
    lagging(strategy, DOMAIN, f"'v0' is synchronized by {shard.kind}, of a kind that does not lag")


def test_lagging_needs_dense_gradients_and_no_forward_overlap() -> None:
    lagging(plain(SPARSE), SPARSE, "by all_gather of sparse rows")
    overlapping = replace(plain(), schedule=Schedule(overlap_forward=True))
    lagging(overlapping, DOMAIN, "continue during the next forward pass")
    lagging(replace(plain(), schedule=Schedule("ddp")), DOMAIN, "torch's ddp does not")


def test_explicit_positions_are_a_permutation_of_the_shards() -> None:
    verify(replace(plain(), schedule=Schedule("explicit", positions=(2, 0, 1))), DOMAIN)
    for positions in ((0, 1), (0, 1, 1), (1, 2, 3)):
        wrong = replace(plain(), schedule=Schedule("explicit", positions=positions))
        refused(wrong, "each of 0 to 2 once")


def test_only_what_runs_into_the_next_forward_pass_gathers_while_the_wire_is_idle() -> None:
    verify(replace(plain(), schedule=Schedule(overlap_forward=True, gather="when_idle")), DOMAIN)
    wrong = replace(plain(), schedule=Schedule(gather="when_idle"))
    assert "during the next forward" in refused(wrong, "'when_idle'").remedy


def test_slices_that_would_be_millions_are_refused() -> None:
    domain = domain_of(chain_graph(((200_000, 200_000),)))  # 160 GB
    for slice_bytes in (0, 40_000):
        verify(replace(plain(domain), schedule=Schedule(slice_bytes=slice_bytes)), domain)
    with pytest.raises(InvalidStrategy, match="slices of 4 bytes") as caught:
        verify(replace(plain(domain), schedule=Schedule(slice_bytes=4)), domain)
    assert "40001 bytes or more" in caught.value.remedy
    verify(replace(plain(domain), schedule=Schedule("ddp", slice_bytes=4)), domain)
    with pytest.raises(InvalidStrategy, match="slices of 4 bytes"):
        sample(domain, Space(slice_bytes=(0, 4)), 0, 1, seed=0)


def test_the_ddp_order_takes_whole_exact_rings_only() -> None:
    schedule = Schedule("ddp", slice_bytes=1 << 20)
    verify(replace(plain(), schedule=schedule), DOMAIN)
    for partition, shard in (
        (HALVES, AllReduce(0)),
        (WHOLE, AllReduce(0, "tree")),
        (WHOLE, ReduceScatter(0)),
    ):
        wrong = replace(with_choice(0, partition, shard), schedule=schedule)
        refused(wrong, "all that torch's DDP does")


def test_the_ddp_order_is_even_and_ends_before_forward() -> None:
    late = Schedule("ddp", overlap_forward=True)
    refused(replace(plain(), schedule=late), "ends before the next forward")
    uneven = (Replica(0, 0.1), Replica(1, 0.3), Replica(2, 0.3), Replica(3, 0.3))
    strategy = replace(plain(), schedule=Schedule("ddp"), replicas=uneven)
    refused(strategy, "averages replicas evenly")


def test_torchs_ddp_carries_sparse_gradients() -> None:
    strategy = with_choice(0, WHOLE, AllReduce(0), domain=SPARSE)
    verify(replace(strategy, schedule=Schedule("ddp")), SPARSE)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("v0", "v1"), "'v2' has no choice"),
        (("v0", "v1", "v2", "v9"), "'v9' does not exist"),
        (("v1", "v0", "v2"), "'v1' is out of order"),
        (("v0", "v1", "v2", "v2"), "has 4 variables"),
    ],
)
def test_a_strategy_for_another_graph_is_refused(names: tuple[str, ...], words: str) -> None:
    choices = tuple(VariableChoice(name, Partition(-1, (1,)), (AllReduce(0),)) for name in names)
    refused(replace(plain(), choices=choices), words)


def test_rows_of_a_table_are_all_gathered_or_all_owned() -> None:
    mixed = with_choice(0, HALVES, AllGather(0), ParameterServer(1, 9), domain=SPARSE)
    refused(mixed, "'v0' has a sparse gradient, whose rows are all gathered or all owned", SPARSE)
