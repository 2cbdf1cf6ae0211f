"""Placements in documents: what they may say, and how they are told apart."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from autosync.domain import Domain
from autosync.errors import InvalidStrategy, NotSupported
from autosync.exports import settings_for
from autosync.extensions.placement.document import (
    PlacedModule,
    PlacedModules,
    Placement,
    evenly,
    in_proportion,
    modules_of,
)
from autosync.extensions.placement.proposals import with_placement
from autosync.extensions.staleness.document import Staleness
from autosync.population import concatenate, decode, encode
from autosync.search.designs.known_designs import all_reduce_5mb, ddp, dear, parallax, ps_one_server
from autosync.search.designs.torch_engines import fsdp2
from autosync.strategy import AllReduce, ParameterServer, Strategy
from autosync.verification import verify
from tests.placed_models import Mixing, SparseTable, Wide, recorded

DOMAIN = recorded(Wide(), 3)
BLOCK = (evenly("block", [1]),)


def placed(placement: PlacedModules, domain: Domain = DOMAIN) -> Strategy:
    return with_placement(all_reduce_5mb(domain), domain, placement)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("", (0,), (1.0,)), "the model itself"),
        (("a", (), ()), "lives on ranks ()"),
        (("a", (1, 0), (0.5, 0.5)), "lives on ranks (1, 0)"),
        (("a", (0, 0), (0.5, 0.5)), "lives on ranks (0, 0)"),
        (("a", (-1,), (1.0,)), "lives on ranks (-1,)"),
        (("a", (0, 1), (1.0,)), "1 shares for 2 ranks"),
        (("a", (0, 1), (0.5, 0.6)), "add up to 1.1"),
        (("a", (0, 1), (0.5, float("nan"))), "add up to nan"),
        (("a", (0, 1), (0.0, 1.0)), "the least of which is 0"),
    ],
)
def test_a_placed_module_says_what_is_wrong_with_it(
    arguments: tuple[str, tuple[int, ...], tuple[float, ...]], words: str
) -> None:
    with pytest.raises(InvalidStrategy) as refused:
        PlacedModule(*arguments)
    assert words in refused.value.message


def test_placements_are_told_apart_whatever_the_order_of_their_modules() -> None:
    both = placed((evenly("block", [1]), evenly("table", [0])))
    assert both.carrying(Placement(modules_of(both)[::-1])).id == both.id
    others = (dear(DOMAIN), placed(BLOCK), placed((evenly("block", [2]),)))
    assert len({both.id, *(each.id for each in others)}) == 4


def test_populations_keep_placements() -> None:
    first, second = encode([dear(DOMAIN), placed(BLOCK)], DOMAIN), encode([placed(BLOCK)], DOMAIN)
    joined = concatenate([second, first])
    found = [modules_of(decode(joined, index, DOMAIN)) for index in range(3)]
    assert found == [BLOCK, (), BLOCK]
    assert decode(joined.take([2]), 0, DOMAIN).id == placed(BLOCK).id


@pytest.mark.parametrize(
    "placement",
    [
        BLOCK,
        (evenly("block.0", [0, 2]), evenly("block.2", [1])),
        (evenly("twice", [0]), evenly("table", [2])),
        (in_proportion("block", [0, 1, 2], [1.0, 2.0, 3.0]),),
    ],
)
def test_modules_that_treat_samples_by_themselves_verify(placement: PlacedModules) -> None:
    verify(placed(placement), DOMAIN)


def test_a_sparse_gradient_lives_on_one_rank_or_all() -> None:
    domain = recorded(SparseTable(), 3)
    for ranks in ([2], [0, 1, 2]):
        verify(with_placement(parallax(domain), domain, (evenly("table", ranks),)), domain)
    with pytest.raises(InvalidStrategy, match="whose gradient is sparse"):
        verify(with_placement(parallax(domain), domain, (evenly("table", [0, 1]),)), domain)


def with_shard(strategy: Strategy, variable: str, shard: AllReduce | ParameterServer) -> Strategy:
    return replace(
        strategy,
        choices=tuple(
            replace(choice, shards=(shard,)) if choice.variable == variable else choice
            for choice in strategy.choices
        ),
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: placed((evenly("blocks", [1]),)), "no operation of graph 'm' belongs to"),
        (lambda: placed((evenly("block.1", [1]),)), "holds no variable"),
        (lambda: placed((evenly("block", [3]),)), "of ranks 0 to 2"),
        (lambda: placed((*BLOCK, evenly("block", [2]))), "placed twice"),
        (lambda: placed((*BLOCK, evenly("block.0", [2]))), "'block.0' is inside 'block'"),
        (lambda: placed(BLOCK).carrying(Staleness(1)), "lag 1 iterations"),
        (lambda: fsdp2(DOMAIN).carrying(Placement(BLOCK)), "fully_shard runs it"),
        (lambda: ddp(DOMAIN).carrying(Placement(BLOCK)), "DDP runs it"),
        (lambda: ps_one_server(DOMAIN).carrying(Placement(BLOCK)), "by a plain ring all-reduce"),
        (
            lambda: with_shard(placed(BLOCK), "block.0.weight", AllReduce(99, "tree")),
            "by a plain ring all-reduce",
        ),
        (lambda: with_shard(placed(BLOCK), "block.0.weight", AllReduce(0)), "live on other ranks"),
        (
            lambda: placed(
                tuple(
                    evenly(name, [0])
                    for name in ("first", "table", "block", "twice", "scale", "last")
                )
            ),
            "every variable is placed",
        ),
    ],
)
def test_impossible_placements_are_refused_by_name(
    make: Callable[[], Strategy], words: str
) -> None:
    with pytest.raises(InvalidStrategy) as refused:
        verify(make(), DOMAIN, allow_inexact=True)
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("norm", "takes statistics over the samples of a batch ('norm.1.native_batch_norm')"),
        ("centred", "'centred.mean'"),
        ("tied", "'tied.weight', which operation"),
    ],
)
def test_placements_of_modules_that_mix_samples_are_refused_by_name(
    module: str, words: str
) -> None:
    domain = recorded(Mixing(), 3)
    with pytest.raises(InvalidStrategy) as refused:
        verify(placed((evenly(module, [1]),), domain), domain)
    assert words in refused.value.message


@pytest.mark.parametrize("framework", ["ddp", "fsdp2", "deepspeed"])
def test_other_frameworks_hold_the_whole_model(framework: str) -> None:
    with pytest.raises(NotSupported, match="for which there is no setting"):
        settings_for(framework, placed(BLOCK), DOMAIN)  # type: ignore[arg-type]
