"""Bundles of earlier versions apply as if this one had written them."""

from dataclasses import replace
from pathlib import Path

import pytest

from autosync.bundle import load_bundle, make_bundle
from autosync.domain import Optimizer
from autosync.errors import InvalidInput
from autosync.search.designs import known_designs
from tests.domains import chain_graph, domain_of, grid_cluster

WRITTEN = Path(__file__).with_name("bundle_version_1.json")
"""By version 1: a hierarchical parameter server, whose chains carry sums, then values."""
USUAL_THEN = Optimizer("sgd", state_tensors=1)
"""What a domain that named no optimizer had."""


def test_a_bundle_of_version_1_is_read_as_this_version_would_write_it() -> None:
    cluster = replace(grid_cluster(2, 2), overlap_slowdown=None)
    domain = replace(domain_of(chain_graph(((4, 4), (4,))), cluster), optimizer=USUAL_THEN)
    assert load_bundle(WRITTEN) == make_bundle(known_designs.hierarchical_ps(domain), domain)


def test_a_damaged_bundle_of_version_1_is_refused_by_name(tmp_path: Path) -> None:
    damaged = tmp_path / "old.json"
    damaged.write_text(WRITTEN.read_text().replace('"after"', '"behind"', 1))
    with pytest.raises(InvalidInput, match=r"old\.json, plan"):
        load_bundle(damaged)
