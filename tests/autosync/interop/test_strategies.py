"""AutoDist's strategy files, written and read by the protobuf library."""

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.domain import Domain
from autosync.errors import AutosyncError, InvalidInput, InvalidStrategy, NotSupported
from autosync.extensions.staleness.document import Staleness
from autosync.interop.autodist_strategy import export_strategy, import_strategy
from autosync.search.designs.design_table import DESIGNS
from autosync.search.designs.known_designs import ddp, ps_pieces_4mb_priority, zero1
from autosync.strategy import (
    AllGather,
    AllReduce,
    Encoding,
    ParameterServer,
    Partition,
    Schedule,
    Strategy,
    VariableChoice,
    even_replicas,
    split,
    whole,
)
from autosync.verification import verify
from tests.autosync.interop.protos import P, parsed
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.search.drawn_domains import domains

SHAPES = ((64, 32), (10, 6), (7,))


def small(ranks_per_node: int = 1, sparse: tuple[int, ...] = ()) -> Domain:
    return domain_of(chain_graph(SHAPES, sparse), grid_cluster(2, ranks_per_node))


def all_reduced(domain: Domain) -> Any:
    """Everything all-reduced, whole, in one group."""
    message = P["Strategy"](id="stated")
    for node in domain.cluster.nodes:
        for number in range(node.ranks):
            message.graph_config.replicas.append(f"{node.address}:CPU:{number}")
    for variable in domain.graph.variables:
        node = message.node_config.add(var_name=f"{variable.name}:0")
        node.AllReduceSynchronizer.spec = 2
        node.AllReduceSynchronizer.group = 3
    return message


def imported(message: Any, domain: Domain, **options: Any) -> Strategy:
    return import_strategy(message.SerializeToString(), domain, **options)


def test_all_reduce_by_group() -> None:
    domain = small()
    message = all_reduced(domain)
    message.node_config[1].AllReduceSynchronizer.group = 5
    strategy = imported(message, domain)
    assert strategy.name == "stated"
    assert strategy.replicas == even_replicas(2)
    assert strategy.schedule == Schedule()
    assert [choice.shards for choice in strategy.choices] == [
        (AllReduce(0),),
        (AllReduce(1),),
        (AllReduce(0),),
    ]


def test_servers_and_hierarchy() -> None:
    domain = small(ranks_per_node=2)
    message = all_reduced(domain)
    servers = [("10.77.0.1:CPU:0", True), ("10.77.0.2:CPU:1", False), ("10.77.0.2:CPU:0", False)]
    for node, (device, local) in zip(message.node_config, servers, strict=True):
        node.PSSynchronizer.reduction_destination = device
        node.PSSynchronizer.local_replication = local
        node.PSSynchronizer.sync = True
        node.ClearField("AllReduceSynchronizer")
    strategy = imported(message, domain)
    assert [choice.shards[0] for choice in strategy.choices] == [
        ParameterServer(0, 0, hierarchical=True),
        ParameterServer(3, 1),
        ParameterServer(2, 2),
    ]


def test_a_remainder_goes_to_the_first_parts() -> None:
    domain = small()
    message = all_reduced(domain)
    node = message.node_config[1]
    node.ClearField("AllReduceSynchronizer")
    node.partitioner = "4,1"
    for index in range(4):
        part = node.part_config.add(var_name=f"v1/part_{index}:0")
        part.AllReduceSynchronizer.group = index
    strategy = imported(message, domain)
    assert strategy.choices[1].partition == Partition(0, (3, 3, 2, 2))
    assert len(strategy.choices[1].shards) == 4


def test_a_sparse_gradient_is_gathered_alone() -> None:
    domain = small(sparse=(0, 1))
    strategy = imported(all_reduced(domain), domain)
    assert [choice.shards[0] for choice in strategy.choices] == [
        AllGather(0),
        AllGather(1),
        AllReduce(2),
    ]


def test_lossy_compressors_only_where_they_are_allowed() -> None:
    domain = small()
    message = all_reduced(domain)
    for node, compressor in zip(message.node_config, (1, 3, 3), strict=True):
        node.AllReduceSynchronizer.compressor = compressor
    with pytest.raises(InvalidStrategy, match="'v0' is sent as fp16"):
        imported(message, domain)
    strategy = imported(message, domain, allow_lossy=True)
    encodings = [choice.shards[0].encoding for choice in strategy.choices]  # type: ignore[union-attr]
    assert encodings == [Encoding("fp16"), Encoding("powersgd", 1), Encoding()]


def asynchronous(node: Any) -> None:
    node.ClearField("AllReduceSynchronizer")
    node.PSSynchronizer.reduction_destination = "10.77.0.1:CPU:0"


def shuffled_parts(node: Any) -> None:
    node.partitioner = "2,1"
    for index in (1, 0):
        node.part_config.add(var_name=f"v1/part_{index}:0").AllReduceSynchronizer.group = 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (asynchronous, "asynchronously"),
        (lambda node: setattr(node, "partitioner", "2,3"), "along 2 axes"),
        (lambda node: setattr(node, "partitioner", "1,2,1"), "partitioner '1,2,1'"),
        (lambda node: setattr(node, "partitioner", "11,1"), "cut into '11,1' parts"),
        (lambda node: setattr(node, "partitioner", "1,2"), "2 parts by '1,2', but 0 are config"),
        (shuffled_parts, "out of order"),
        (lambda node: setattr(node.AllReduceSynchronizer, "compressor", 2), "error feedback"),
        (lambda node: setattr(node.AllReduceSynchronizer, "spec", 9), "spec 9"),
        (lambda node: setattr(node.PSSynchronizer, "sync", True), "two synchronizers"),
        (lambda node: node.ClearField("AllReduceSynchronizer"), "no synchronizer"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(change: Any, why: str) -> None:
    message = all_reduced(small())
    change(message.node_config[1])
    with pytest.raises(NotSupported, match=f"'v1'.*{why}"):
        imported(message, small())


def test_parts_are_counted_before_they_are_made() -> None:
    """A few bytes of partitioner could otherwise ask for a tuple of 999,999,999 lengths."""
    domain = domain_of(chain_graph(((10**9,), (10, 6), (7,))), grid_cluster(2))
    message = all_reduced(domain)
    message.node_config[0].partitioner = "999999999"
    tracemalloc.start()
    try:
        with pytest.raises(NotSupported, match=r"999999999 parts by .*, but 0 are configured"):
            imported(message, domain)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_mixed_staleness_is_refused() -> None:
    domain = small()
    message = all_reduced(domain)
    asynchronous(message.node_config[1])
    message.node_config[1].PSSynchronizer.sync = True
    message.node_config[1].PSSynchronizer.staleness = 2
    with pytest.raises(NotSupported, match="staleness 0 and 2"):
        imported(message, domain, allow_inexact=True)


def test_other_variables_are_refused_by_name() -> None:
    domain = small()
    message = all_reduced(domain)
    message.node_config[2].var_name = "elsewhere:0"
    with pytest.raises(InvalidStrategy, match="'elsewhere:0' is unknown"):
        imported(message, domain)
    named = all_reduced(domain)
    named.node_config.add(var_name="unused:0").AllReduceSynchronizer.group = 1
    assert len(imported(named, domain, without_gradient={"unused"}).choices) == 3
    del message.node_config[2]
    with pytest.raises(InvalidStrategy, match="'v2' has no node config"):
        imported(message, domain)


def test_every_device_holds_one_replica() -> None:
    domain = small()
    message = all_reduced(domain)
    message.graph_config.replicas[1] = "10.77.0.9:CPU:0"
    with pytest.raises(InvalidInput, match=r"'10\.77\.0\.9:CPU:0' is no device"):
        imported(message, domain)
    del message.graph_config.replicas[1]
    with pytest.raises(InvalidStrategy, match=r"'10\.77\.0\.2:CPU:0' holds none"):
        imported(message, domain)


def test_the_library_reads_what_is_written() -> None:
    domain = small(ranks_per_node=2)
    shards = (ParameterServer(0, 0, hierarchical=True), ParameterServer(3, 1))
    strategy = Strategy(
        (
            VariableChoice("v0", split((64, 32), 1, 2), shards),
            VariableChoice("v1", whole((10, 6)), (AllReduce(2),)),
            VariableChoice("v2", whole((7,)), (AllReduce(2),)),
        ),
        even_replicas(4),
        name="mine",
    )
    message = parsed("Strategy", export_strategy(strategy, domain))
    assert message.id == "mine"
    assert list(message.graph_config.replicas) == [
        f"10.77.0.{host}:CPU:{number}" for host in (1, 2) for number in (0, 1)
    ]
    cut, first, second = message.node_config
    assert (cut.var_name, cut.partitioner) == ("v0:0", "1,2")
    assert [part.var_name for part in cut.part_config] == ["v0/part_0:0", "v0/part_1:0"]
    servers = [part.PSSynchronizer for part in cut.part_config]
    assert [server.reduction_destination for server in servers] == [
        "10.77.0.1:CPU:0",
        "10.77.0.2:CPU:1",
    ]
    assert [server.local_replication for server in servers] == [True, False]
    assert all(server.sync for server in servers)
    assert first.HasField("AllReduceSynchronizer")
    assert first.AllReduceSynchronizer.group == second.AllReduceSynchronizer.group


@given(st.data())
def test_within_reach_every_strategy_comes_back(data: st.DataObject) -> None:
    domain = data.draw(domains(elementwise=True))
    strategy = data.draw(within_reach(domain))
    written = export_strategy(strategy, domain, allow_lossy=True)
    again = import_strategy(
        parsed("Strategy", written).SerializeToString(), domain, allow_lossy=True
    )
    assert again.id == strategy.id
    assert again.name == strategy.id


@st.composite
def within_reach(draw: st.DrawFn, domain: Domain) -> Strategy:
    """Strategies that both AutoDist and this project can say."""
    nodes = domain.cluster.nodes
    choices = []
    alone = 1000
    for variable in domain.graph.variables:
        axes = [0] if variable.sparse else range(len(variable.shape))
        axis = draw(st.sampled_from([axis for axis in axes if variable.shape[axis] > 1] or [-1]))
        parts = draw(st.integers(1, min(variable.shape[axis], 40))) if axis >= 0 else 1
        partition = split(variable.shape, axis, parts) if axis >= 0 else whole(variable.shape)
        shards: list[Any] = []
        for _ in range(parts):
            alone += 1
            if draw(st.booleans()) or (variable.sparse and parts > 1):
                hierarchical = draw(st.booleans()) and any(node.ranks > 1 for node in nodes)
                server = draw(st.integers(0, domain.world_size - 1))
                shards.append(ParameterServer(server, alone, hierarchical))
            elif variable.sparse:
                shards.append(AllGather(alone))
            else:
                encodings = ["none", "fp16"]
                encoding = Encoding(draw(st.sampled_from(encodings)))
                group = 2 * draw(st.integers(0, 3)) + encodings.index(encoding.name)
                shards.append(AllReduce(group, encoding=encoding))
        choices.append(VariableChoice(variable.name, partition, tuple(shards)))
    strategy = Strategy(tuple(choices), even_replicas(domain.world_size))
    verify(strategy, domain, allow_lossy=True)
    return strategy


def test_beyond_reach_is_refused_by_name_and_reason() -> None:
    domain = domain_of(chain_graph(SHAPES, factor_rows=4), grid_cluster(2, 2))
    plain = imported(all_reduced(domain), domain)

    def with_shard(shard: Any) -> Strategy:
        first = replace(plain.choices[0], shards=(shard,))
        return replace(plain, choices=(first, *plain.choices[1:]))

    refused = {
        "schedule has the sending order ddp": ddp(domain),
        "schedule has the sending order priority": ps_pieces_4mb_priority(domain),
        "cuts messages": replace(plain, schedule=Schedule(slice_bytes=1 << 20)),
        "next forward": replace(plain, schedule=Schedule(overlap_forward=True)),
        "'?v0'? is synchronized by reduce_scatter": zero1(domain),
        "v0 is all-reduced by the tree": with_shard(AllReduce(9, "tree")),
        "v0 is all-reduced along an explicit ring": with_shard(
            AllReduce(9, device_order=(0, 2, 1, 3))
        ),
    }
    for why, strategy in refused.items():
        with pytest.raises(NotSupported, match=why):
            export_strategy(strategy, domain)
    with pytest.raises(InvalidStrategy, match=r"'v0' .* does not lag 1 iterations"):
        export_strategy(plain.carrying(Staleness(1)), domain)


def test_pieces_and_unequal_parts_are_refused() -> None:
    domain = small()
    plain = imported(all_reduced(domain), domain)
    for partition, why in (
        (Partition(-1, (30, 30)), "flat pieces"),
        (Partition(0, (2, 8)), "unequal parts"),
    ):
        cut = VariableChoice("v1", partition, (AllReduce(0),) * 2)
        strategy = replace(plain, choices=(plain.choices[0], cut, plain.choices[2]))
        with pytest.raises(NotSupported, match=f"variable v1 is cut into {why}"):
            export_strategy(strategy, domain)


def test_powersgd_of_a_matrix_that_autodist_sends_as_it_is_is_refused() -> None:
    domain = domain_of(chain_graph(((10, 6), (64, 1))), grid_cluster(2))
    choices = tuple(
        VariableChoice(
            variable.name,
            whole(variable.shape),
            (AllReduce(group, encoding=Encoding("powersgd", 1)),),
        )
        for group, variable in enumerate(domain.graph.variables)
    )
    strategy = Strategy(choices, even_replicas(2))
    with pytest.raises(NotSupported, match=r"variable v1 of shape \(64, 1\) is packed by PowerSGD"):
        export_strategy(strategy, domain, allow_lossy=True)


OWN_BUILDERS = (
    "all_reduce_chunk128",
    "ps_one_server",
    "ps_load_balanced",
    "ps_partitioned",
    "ps_uneven_partitioned",
    "partitioned_all_reduce",
    "random_axis_partition_ar",
    "parallax",
)


@pytest.mark.parametrize("builder", OWN_BUILDERS)
def test_what_autodists_own_builders_make_is_within_reach(builder: str) -> None:
    domain = small(ranks_per_node=2, sparse=(0,))
    strategy = DESIGNS[builder](domain)
    assert import_strategy(export_strategy(strategy, domain), domain).id == strategy.id


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(AutosyncError):
        import_strategy(data, small())


def test_fields_that_are_not_known_are_refused() -> None:
    """One of a later AutoDist could change what a strategy means; so could another wire type."""
    domain = small()
    message = all_reduced(domain)
    for odd, named in ((b"\x32\x00", "number 6 of Strategy"), (b"\x08\x01", "number 1 of")):
        with pytest.raises(InvalidInput, match=f"not known: {named}"):
            import_strategy(message.SerializeToString() + odd, domain)
    node = message.node_config[0]
    node.AllReduceSynchronizer.MergeFromString(b"\x78\x01")
    with pytest.raises(InvalidInput, match="number 15 of AllReduceSynchronizer"):
        imported(message, domain)
