"""What placed modules change in what travels, by hand."""

from dataclasses import replace

import pytest

from autosync.extensions.placement.document import PlacedModule, evenly, in_proportion
from autosync.extensions.placement.prediction import (
    PlacedAccount,
    placement_accounts,
)
from autosync.extensions.placement.proposals import with_placement
from autosync.search.designs.known_designs import all_reduce_per_variable
from autosync.simulator.explanation import explain
from autosync.strategy import Replica
from tests.placed_models import MEGABYTE, OUTPUT_BYTES, heavy_layers

THREE = heavy_layers((1.0, 1.0, 1.0))


def accounts(*placement: PlacedModule) -> list[PlacedAccount]:
    strategy = with_placement(all_reduce_per_variable(THREE), THREE, placement)
    return placement_accounts(THREE, strategy)


def test_one_device_of_three() -> None:
    """Two thirds of three batches go there; samples in and out, gradients in and out."""
    (found,) = accounts(evenly("layer1", [1]))
    assert found.variable_bytes == MEGABYTE
    assert found.unsent_bytes == 2 * 2 * MEGABYTE
    assert found.dealt_bytes == pytest.approx(4 * 2 * OUTPUT_BYTES, abs=1)
    assert found.in_words(3) == (
        "layer1 (1.0 MB of variables) on rank 1: 4.0 MB of gradients no longer travel, "
        "32.8 kB of samples and their gradients are dealt an iteration"
    )


def test_two_ranks_still_exchange_their_gradients() -> None:
    (found,) = accounts(evenly("layer1", [0, 2]))
    assert found.unsent_bytes == 2 * MEGABYTE
    assert "on ranks 0, 2:" in found.in_words(3)


def test_all_ranks_by_shares_save_nothing() -> None:
    (found,) = accounts(in_proportion("layer1", range(3), (2.0, 1.0, 1.0)))
    assert found.unsent_bytes == 0
    assert "on all ranks by 50%, 25%, 25%:" in found.in_words(3)
    assert "no longer travel" not in found.in_words(3)


def test_what_is_where_the_replicas_have_it_is_not_dealt() -> None:
    strategy = with_placement(
        all_reduce_per_variable(THREE),
        THREE,
        (in_proportion("layer1", range(3), (2.0, 1.0, 1.0)),),
    )
    shares = tuple(Replica(rank, share) for rank, share in enumerate((0.5, 0.25, 0.25)))
    (found,) = placement_accounts(THREE, replace(strategy, replicas=shares))
    assert found.dealt_bytes == 0


def test_an_explanation_has_them() -> None:
    plain = all_reduce_per_variable(THREE)
    assert explain(THREE, plain).extensions == ()
    explained = explain(THREE, with_placement(plain, THREE, (evenly("layer1", [1]),)))
    ((key, words),) = explained.extensions
    assert key == "placement"
    assert words.startswith("layer1 (1.0 MB")
