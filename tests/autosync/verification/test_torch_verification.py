"""What torch's own engines do, and what is refused under their names."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from autosync.domain import Domain
from autosync.errors import InvalidStrategy, NotSupported
from autosync.search.designs.torch_engines import ddp_hooked, fsdp2, hsdp
from autosync.simulator.sharded_strategy import fully_sharded, held_units, sharded_by
from autosync.strategy import AllReduce, Encoding, Replica, Schedule, Strategy
from autosync.torch_engine import FullyShard
from autosync.verification import verify
from tests.domains import chain_graph, domain_of, grid_cluster, layered_graph

DOMAIN = domain_of(layered_graph(), grid_cluster(2, 2))
SPARSE = domain_of(chain_graph(((3000, 64), (64, 64)), (0,)))
BF16 = Encoding("bf16")


def with_shard(strategy: Strategy, index: int, **changes: object) -> Strategy:
    choice = strategy.choices[index]
    shard = replace(choice.shards[0], **changes)  # type: ignore[arg-type]
    choices = list(strategy.choices)
    choices[index] = replace(choice, shards=(shard,))
    return replace(strategy, choices=tuple(choices))


def test_torchs_engines_verify() -> None:
    verify(fsdp2(DOMAIN), DOMAIN)
    verify(hsdp(DOMAIN), DOMAIN)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: replace(s, schedule=Schedule("priority", overlap_forward=True)), "fully_shard"),
        (lambda s: replace(s, schedule=Schedule("fifo")), "fully_shard"),
        (lambda s: with_shard(s, 1, sharded_update=False), "whole reduce-scatter"),
        (lambda s: with_shard(s, 1, encoding=BF16), "packed as all others are"),
        (lambda s: with_shard(s, 4, group=7), "group of its unit"),
        (lambda s: with_shard(s, 1, group=s.choices[2].shards[0].group), "share a group"),
        (lambda s: replace(s, engine=replace(s.engine, shard_ranks=3)), "does not divide 4"),
        (lambda s: replace(s, engine=replace(s.engine, units=(*s.engine.units, "no"))), "'no'"),
        (
            lambda s: replace(
                s, replicas=(Replica(0, 0.4), *(Replica(rank, 0.2) for rank in (1, 2, 3)))
            ),
            "averages replicas evenly",
        ),
    ],
)
def test_unsupported_fully_shard_strategies_are_refused(
    change: Callable[[Strategy], Strategy], words: str
) -> None:
    with pytest.raises(InvalidStrategy, match=words):
        verify(change(fully_sharded(DOMAIN, 4)), DOMAIN, allow_lossy=True)


def test_computing_in_halves_is_lossy_and_wants_wider_variables() -> None:
    def halved(domain: Domain) -> Strategy:
        return sharded_by(domain, FullyShard(held_units(domain), 4, param_dtype="bf16"))

    verify(halved(DOMAIN), DOMAIN, allow_lossy=True)
    with pytest.raises(InvalidStrategy, match="loses information"):
        verify(halved(DOMAIN), DOMAIN)
    small = tuple(replace(variable, dtype="bfloat16") for variable in DOMAIN.graph.variables)
    on = replace(DOMAIN, graph=replace(DOMAIN.graph, variables=small))
    refused(halved(on), on, "is bfloat16 already")


def refused(strategy: Strategy, domain: Domain, words: str) -> None:
    with pytest.raises(InvalidStrategy, match=words):
        verify(strategy, domain, allow_lossy=True)


def test_torch_shards_no_scalars() -> None:
    shapes = ((64, 32), (64, 32), (), (64, 32), (64, 32))
    domain = domain_of(layered_graph(shapes), grid_cluster(2, 2))
    sharded = sharded_by(domain, FullyShard(("layers.0", "layers.1", "layers.2"), 4))
    refused(sharded, domain, "'layers.1.weight' has no dimension")
    with pytest.raises(NotSupported, match=r"'layers\.1\.weight' has no dimension"):
        fully_sharded(domain, 4)


def test_hooks_are_lossy_and_one_for_all() -> None:
    for encoding in (BF16, Encoding("fp16"), Encoding("powersgd", 1)):
        hooked = ddp_hooked(DOMAIN, encoding)
        verify(hooked, DOMAIN, allow_lossy=True)
        with pytest.raises(InvalidStrategy, match="loses information"):
            verify(hooked, DOMAIN)
    mixed = ddp_hooked(DOMAIN, BF16)
    refused(with_shard(mixed, 0, group=9, encoding=Encoding("fp16")), DOMAIN, "one communication")
    refused(with_shard(mixed, 0, group=9, encoding=Encoding()), DOMAIN, "one communication hook")
    refused(ddp_hooked(SPARSE, BF16), SPARSE, "no communication hook")


def test_powersgd_leaves_out_what_it_cannot_pack() -> None:
    hooked = ddp_hooked(
        domain_of(layered_graph(((64, 64), (64,), (4, 4), (64, 64)))), Encoding("powersgd", 2)
    )
    shards = [choice.shards[0] for choice in hooked.choices]
    ranks = [shard.encoding.rank for shard in shards if isinstance(shard, AllReduce)]
    assert ranks == [2, 0, 0, 2]
    assert shards[0].group != shards[1].group
