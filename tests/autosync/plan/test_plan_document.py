"""Bundles of earlier versions apply as if this one had written them; edited ones are refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.bundle import load_bundle, make_bundle, read_bundle, save_bundle
from autosync.documents import to_data
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


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("strategy", "staleness", 4),
        ("plan", "staleness", 4),
        ("strategy", "placement", [{"module": "layer0", "ranks": [0], "shares": [1.0]}]),
        ("strategy", "engine", {"kind": "fully_shard", "units": [], "shard_ranks": 4}),
    ],
)
def test_a_bundle_of_which_one_part_was_edited_is_refused(
    part: str, field: str, value: object
) -> None:
    """A job would run the plan, without what was written into the strategy."""
    domain = domain_of(chain_graph(((4, 4), (4,))), grid_cluster(2, 2))
    data = to_data(make_bundle(known_designs.hierarchical_ps(domain), domain))
    assert read_bundle(json.dumps(data)).strategy.extensions == ()
    data[part][field] = value
    with pytest.raises(InvalidInput, match=f"differ in '{field}'"):
        read_bundle(json.dumps(data))


def test_a_bundle_is_utf_8_whatever_the_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = domain_of(chain_graph(((4, 4), (4,))), grid_cluster(2, 2))
    shipped = make_bundle(replace(known_designs.ddp(domain), name="最速"), domain)
    monkeypatch.setattr("io.text_encoding", lambda encoding, level=2: encoding or "latin-1")
    save_bundle(shipped, tmp_path / "best.json")
    assert load_bundle(tmp_path / "best.json") == shipped
