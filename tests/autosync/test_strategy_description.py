from dataclasses import replace

from autosync.extensions.placement.document import evenly, in_proportion
from autosync.extensions.placement.proposals import with_placement
from autosync.extensions.staleness.document import Staleness
from autosync.search.designs import known_designs
from autosync.simulator.sharded_strategy import sharded_by
from autosync.strategy import (
    AllReduce,
    Encoding,
    Factors,
    ParameterServer,
    Replica,
    Schedule,
    VariableChoice,
    whole,
)
from autosync.strategy_description import describe, script_lines
from autosync.torch_engine import FullyShard
from tests.domains import chain_graph, domain_of, grid_cluster, layered_graph
from tests.placed_models import heavy_layers

DOMAIN = domain_of(chain_graph(((1024, 1024),) * 6 + ((2048, 1024),), factor_rows=4))


def test_one_method() -> None:
    text = describe(known_designs.zero1_overlap(DOMAIN), DOMAIN)
    assert text == (
        "reduce-scatter with sharded update in 2 groups of 16 MiB; front layers first, "
        "also during the next forward pass"
    )


def test_mixed_methods_from_the_most_bytes_to_the_fewest() -> None:
    strategy = known_designs.all_reduce_5mb(DOMAIN)
    last = VariableChoice("v6", whole((2048, 1024)), (Factors(99),))
    strategy = replace(
        strategy,
        choices=(*strategy.choices[:-1], last),
        schedule=Schedule("fifo", slice_bytes=1 << 16),
    )
    assert describe(strategy, DOMAIN) == (
        "all-reduce in 3 groups of 8 MiB for 6 variables; factored gradients in 1 group of 48 KiB "
        "for v6; as gradients get ready, in slices of 64 KiB"
    )


def test_owners_cuts_and_shares() -> None:
    strategy = known_designs.ps_pieces_4mb_priority(DOMAIN)
    shares = tuple(Replica(rank, share) for rank, share in enumerate((0.4, 0.2, 0.2, 0.2)))
    assert describe(replace(strategy, replicas=shares), DOMAIN) == (
        "parameter server in 8 groups on 4 owners of 4 MiB; v6 cut into 2 shards; "
        "batch shares 20% to 40%; front layers first, also during the next forward pass"
    )


def test_shares_that_differ_by_little_are_told_apart() -> None:
    strategy = known_designs.ps_pieces_4mb_priority(DOMAIN)
    near = tuple(Replica(rank, share) for rank, share in enumerate((0.251, 0.249, 0.25, 0.25)))
    assert "batch shares 24.9% to 25.1%" in describe(replace(strategy, replicas=near), DOMAIN)
    assert "batch shares" not in describe(strategy, DOMAIN)


def test_ddp_and_strategies_without_a_domain() -> None:
    assert describe(known_designs.ddp(DOMAIN)) == "torch's DDP with its own 2 buckets"
    text = describe(known_designs.all_reduce_5mb(DOMAIN))
    assert text == "all-reduce in 4 groups; as gradients get ready"


def test_when_halves_are_gathered_shows() -> None:
    domain = domain_of()
    idle = describe(known_designs.dear_idle(domain), domain)
    assert idle.endswith("also during the next forward pass, all-gathers wait for idle links")
    assert idle.startswith(describe(known_designs.dear_sliced(domain), domain))


def test_options_show() -> None:
    domain = domain_of(chain_graph(((4, 4), (4,))), grid_cluster(2, 2))
    assert "hierarchical all-reduce" in describe(
        known_designs.hierarchical_all_reduce(domain), domain
    )
    assert "hierarchical parameter server" in describe(
        known_designs.hierarchical_ps(domain), domain
    )
    strategy = known_designs.all_reduce_one_bucket(domain)
    for shard, words in (
        (AllReduce(0, "tree"), "tree all-reduce"),
        (AllReduce(0, "ring", (3, 0, 1, 2)), "all-reduce along 3-0-1-2"),
        (AllReduce(0, encoding=Encoding("bf16")), "all-reduce in bf16"),
        (ParameterServer(1, 0, returns_gradients=True), "server that returns gradients"),
    ):
        choice = replace(strategy.choices[0], shards=(shard,))
        assert words in describe(replace(strategy, choices=(choice, strategy.choices[1])), domain)


def test_how_late_updates_are() -> None:
    owned = known_designs.ps_load_balanced(DOMAIN)
    assert describe(owned.carrying(Staleness(1))).endswith("; values at most 1 iteration old")
    assert describe(owned.carrying(Staleness(4))).endswith("; values at most 4 iterations old")


def test_a_script_is_told_all_that_a_bundle_needs() -> None:
    owned = known_designs.ps_load_balanced(DOMAIN)
    two = ["import autosync"]
    two += ['model, optimizer = autosync.distribute(model, optimizer, "best.json")']
    assert script_lines(owned, "best.json") == two
    shares = tuple(Replica(rank, share) for rank, share in enumerate((0.4, 0.2, 0.2, 0.2)))
    dealt = script_lines(replace(owned, replicas=shares), "best.json")
    assert dealt[:2] == two
    assert 'autosync.ShareSampler(data, global_batch, "best.json")' in dealt[2]
    assert "sampler.batch_size, sampler=sampler" in dealt[3]
    late = script_lines(owned.carrying(Staleness(2)), "best.json")
    assert late[1].endswith('"best.json", allow_inexact=True)')
    shard = ParameterServer(0, 0, encoding=Encoding("fp16"))
    packed = replace(owned.choices[0], shards=(shard,) * len(owned.choices[0].shards))
    lossy = script_lines(replace(owned, choices=(packed, *owned.choices[1:])), "best.json")
    assert lossy[1].endswith('"best.json", allow_lossy=True)')
    computed = FullyShard(("layers.0",), 4, param_dtype="bf16")
    halves = script_lines(sharded_by(domain_of(layered_graph()), computed), "best.json")
    assert halves[1].endswith('"best.json", allow_lossy=True)')


def test_placements_are_described() -> None:
    domain = heavy_layers((1.0, 1.0, 1.0))
    strategy = with_placement(
        known_designs.all_reduce_per_variable(domain),
        domain,
        (
            evenly("layer0", [1]),
            evenly("layer1", [1]),
            in_proportion("layer2", [0, 2], [3.0, 0.0, 1.0]),
            evenly("layer3", [0, 1, 2]),
        ),
    )
    assert "layer0 and layer1 on rank 1; layer2 on ranks 0, 2 by 75%, 25%" in describe(strategy)
    assert "layer3 on all ranks" in describe(strategy)
    assert "layer0 and layer1 (1.9 MiB) on rank 1" in describe(strategy, domain)


def test_shardings_by_what_is_chosen_beside_torchs_defaults() -> None:
    sharded = domain_of(layered_graph())
    units = (("layers.0", "layers.1"), "layers.2")
    plain = describe(sharded_by(sharded, FullyShard(units, 4)), sharded)
    assert plain == "torch's FSDP2 in 3 units"
    chosen = FullyShard(units, 2, (True, False), 2, 3)
    assert describe(sharded_by(sharded, chosen, Encoding("bf16")), sharded) == (
        "torch's HSDP over groups of 2 ranks in 3 units; 2 units keep their values until backward; "
        "prefetching 2 in forward, 3 in backward; gradients reduced in bf16"
    )
    kept = sharded_by(sharded, FullyShard(units, 4, False))
    assert describe(kept) == "torch's FSDP2 without resharding (ZeRO-2) in 3 units"
