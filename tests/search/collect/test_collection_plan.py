"""The plan file of a dataset: the bundled one, and what is refused by name."""

from dataclasses import replace
from pathlib import Path

import pytest

from autosync.bundled_data import data_file
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotFound
from autosync.search.collect.collection_log import store_domain, stored_domain, stored_domains
from autosync.search.collect.collection_plan import (
    CollectionPlan,
    CollectionTarget,
    domain_of,
    load_plan,
    ring_seconds,
    select_targets,
)

TARGET = CollectionTarget("small", "resnet50", "example-4x1", 1.0, "1")


def test_the_bundled_plan_is_the_dataset_that_is_promised() -> None:
    plan = load_plan(data_file("runtimes", "plan.yaml"))
    domains: list[Domain] = [domain_of(target) for target in plan.domains]
    assert plan.strategies >= 220
    assert len(domains) >= 8
    assert len({domain.graph.name for domain in domains}) >= 5
    assert sum(target.occasions == 2 for target in plan.domains) >= 2
    for target, domain in zip(plan.domains, domains, strict=True):
        ring = ring_seconds(domain.graph, domain.cluster)
        ratio = ring / domain.profile.compute_seconds
        assert ratio == pytest.approx(target.ring_over_compute)
        assert 1 <= target.ring_over_compute <= 3 or any(v.sparse for v in domain.graph.variables)
        assert all(scale > 0 for scale in target.scales)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("domains: [{name: a, model: resnet50}]", "cluster"),
        ("strategies: 0\ndomains: []", "strategies"),
        ("domains: []", "domains .* is empty"),
        ("domains: 3", "domains"),
        ("- 1", "plan.yaml"),
        ("domains: [", "plan"),
    ],
)
def test_a_bad_plan_is_refused_by_name(tmp_path: Path, text: str, names: str) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=names):
        load_plan(file)


def test_unknown_targets_of_a_plan_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no collection plan"):
        load_plan(tmp_path / "none.yaml")
    with pytest.raises(InvalidInput, match="'large' is not in the plan"):
        select_targets(CollectionPlan((TARGET,)), ("large",))
    bad = CollectionTarget("bad", "resnet50", "example-4x1", 1.0, "1/0")
    with pytest.raises(InvalidInput, match=r"bad\.byte_scale"):
        _ = bad.scales
    with pytest.raises(InvalidInput, match=r"bad\.time_scale"):
        _ = replace(TARGET, name="bad", time_scale="1e400").scales
    for wrong in (replace(TARGET, strategies=-1), replace(TARGET, picks=-1)):
        with pytest.raises(InvalidInput, match=r"(strategies|picks) -1 is below"):
            domain_of(wrong)
    with pytest.raises(InvalidInput, match="stands twice"):
        CollectionPlan((TARGET, TARGET))
    for name in ("", "../small", "small/one", "."):
        with pytest.raises(InvalidInput, match="names no file"):
            CollectionPlan((replace(TARGET, name=name),))


def test_a_probed_domain_is_utf_8_whatever_the_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = domain_of(TARGET)
    named = replace(domain, graph=replace(domain.graph, name="最速"))
    monkeypatch.setattr("io.text_encoding", lambda encoding, level=2: encoding or "latin-1")
    store_domain(tmp_path, "small", named)
    assert stored_domain(tmp_path, "small") == named
    assert stored_domains(tmp_path) == [named]
