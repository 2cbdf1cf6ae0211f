"""What an operator sets, and what is refused beyond it."""

import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from autosync.api.db import Database
from autosync.api.engine.service_limits import (
    OF_BODIES,
    OF_FORMS,
    ServiceLimits,
    TryLater,
    check_cluster,
    check_graph,
    describe_limits,
    limits_from,
)
from autosync.api.engine.submission import Submission, enqueue
from autosync.errors import InvalidInput
from tests.api.sample import small_request
from tests.domains import chain_graph, domain_of, grid_cluster

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "operating.md"


def test_limits_are_read_from_texts_and_the_last_one_counts() -> None:
    assert limits_from(["", " budget=5", "ranks=8", "budget=7 "]) == ServiceLimits(
        budget=7, ranks=8
    )
    assert limits_from([]) == ServiceLimits()


@pytest.mark.parametrize(
    "text", ["budget", "budget=", "budget=-1", "budget=0", "budget=many", "=3", "bugdet=3"]
)
def test_what_is_no_limit_is_named_with_those_there_are(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        limits_from([text])
    assert caught.value.thing == "--limit"
    assert "NUMBER" in caught.value.remedy or "whole number" in caught.value.remedy
    with pytest.raises(InvalidInput):
        limits_from([f"budget={'9' * 5000}"])


def test_documents_beyond_a_limit_are_refused_by_its_name() -> None:
    graph, cluster = chain_graph(), grid_cluster(4, ranks_per_node=1)
    check_graph(graph, ServiceLimits(operations=6, variables=6))
    check_cluster(cluster, ServiceLimits(nodes=4, devices=4))
    checks: tuple[tuple[str, int, Callable[[ServiceLimits], None]], ...] = (
        ("operations", 6, lambda limits: check_graph(graph, limits)),
        ("variables", 6, lambda limits: check_graph(graph, limits)),
        ("nodes", 4, lambda limits: check_cluster(cluster, limits)),
        ("devices", 4, lambda limits: check_cluster(cluster, limits)),
    )
    for name, value, check in checks:
        with pytest.raises(InvalidInput, match=f"{name} is {value}") as caught:
            check(replace(ServiceLimits(), **{name: value - 1}))
        assert f"autosync serve --limit {name}=NUMBER" in caught.value.remedy


@pytest.mark.parametrize("limit", ["budget=5", "proposals=63", "ranks=3"])
def test_a_tuning_beyond_a_limit_is_not_queued(sqlite: Database, limit: str) -> None:
    submission = Submission("alice", limits_from([limit]))
    with pytest.raises(InvalidInput, match=limit.partition("=")[0]):
        enqueue(sqlite, small_request(), submission)
    assert enqueue(sqlite, small_request())  # the operator's own


def test_a_client_whose_queue_is_full_tries_later_and_others_do_not(database: Database) -> None:
    limits = ServiceLimits(queued=2)
    for _ in range(2):
        enqueue(database, small_request(), Submission("alice", limits))
    with pytest.raises(TryLater, match="2 of your tunings wait") as caught:
        enqueue(database, small_request(), Submission("alice", limits))
    assert caught.value.retry_seconds > 0
    enqueue(database, small_request(), Submission("bob", limits))


def test_every_limit_has_a_number_and_a_description() -> None:
    assert describe_limits().keys() == asdict(ServiceLimits()).keys()
    assert domain_of().world_size <= ServiceLimits().ranks


def test_the_proxy_of_the_guide_lets_every_body_through_that_the_limits_allow() -> None:
    (most,) = re.findall(r"client_max_body_size (\d+)m;", GUIDE.read_text())
    names = {*OF_BODIES.values(), *OF_FORMS.values()}
    assert int(most) >= max(getattr(ServiceLimits(), name) for name in names)
