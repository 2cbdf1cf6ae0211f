"""Which models and clusters are listed, and which tunings are of one cluster."""

from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from autosync.api.db import Database
from autosync.api.db.document_store import cluster_row, graph_row, insert_rows
from autosync.api.engine.submission import enqueue
from autosync.api.engine.tuning_request import TuningRequest
from autosync.api.http.app import create_app
from autosync.api.views import documents, reports
from autosync.api.views.dashboard.tuning_comparison import compared_tunings
from autosync.api.views.reports import TuningFilter
from autosync.cluster import MessageCost
from autosync.cluster.cluster_file import load_cluster
from autosync.domain import Domain
from autosync.models import bundled
from autosync.profiling import estimate_profile
from tests.api.sample import claimed, small_request

MEASURED = (MessageCost("all_reduce", 1e-3, residual=0.02), MessageCost("engine", 1e-4))


def probed(database: Database, request: TuningRequest, seconds: float = 0.0) -> str:
    """A tuning that measured costs before its search; its id."""
    held, store = claimed(database, request)
    costs = tuple(
        replace(cost, startup_seconds=cost.startup_seconds + seconds) for cost in MEASURED
    )
    cluster = replace(request.domain.cluster, costs=costs, link_seconds_per_send=1e-5)
    store.use_domain(replace(request.domain, cluster=cluster))
    return held.job_id


def test_tunings_that_probed_are_of_the_cluster_that_was_asked_for(database: Database) -> None:
    request = small_request()
    with database.writing() as session:
        insert_rows(session, (cluster_row(request.domain.cluster),))
    ids = [probed(database, request, seconds) for seconds in (0.0, 1e-5)]
    with database.reading() as session:
        tunings = [reports.tuning(session, each) for each in ids]
        assert {each.cluster_id for each in tunings} == {request.domain.cluster.id}
        assert tunings[0].domain_id != tunings[1].domain_id
        assert compared_tunings(session, ids).warning == ""
        of_it = reports.tunings(session, 10, None, TuningFilter(cluster_id=tunings[0].cluster_id))
        assert {each.id for each in of_it.items} == {*ids}
        (listed,) = documents.clusters(session, 10).items
        assert listed.id == request.domain.cluster.id
        assert documents.measured_costs(session, tunings[0]) == MEASURED
    with TestClient(create_app(database), base_url="http://127.0.0.1") as client:
        shown = client.get(f"/clusters/{request.domain.cluster.id}").text
        assert all(f"/tunings/{each}" in shown for each in ids)
        assert "measured before the search" in client.get(f"/tunings/{ids[0]}").text


def test_costs_that_the_cluster_states_were_not_measured(sqlite: Database) -> None:
    request = small_request()
    stated = replace(request.domain.cluster, costs=MEASURED)
    tuning_id = enqueue(sqlite, replace(request, domain=replace(request.domain, cluster=stated)))
    with sqlite.reading() as session:
        tuning = reports.tuning(session, tuning_id)
        assert tuning.cluster_id == stated.id
        assert documents.measured_costs(session, tuning) == ()


@pytest.mark.parametrize("batch_size", [None, 7])
def test_what_is_bundled_is_not_listed_among_what_was_posted(
    sqlite: Database, batch_size: int | None
) -> None:
    graph, cluster = bundled("resnet50", batch_size), load_cluster("example-4x1")
    domain = Domain(graph, cluster, estimate_profile(graph, cluster.fastest_device_type))
    enqueue(sqlite, replace(small_request(), domain=domain))
    with sqlite.writing() as session:
        posted = replace(
            graph,
            operations=(replace(graph.operations[0], forward_flops=1), *graph.operations[1:]),
        )
        faster = replace(cluster, costs=MEASURED)
        insert_rows(session, (graph_row(posted), cluster_row(faster)))
    with sqlite.reading() as session:
        assert [each.id for each in documents.graphs(session, 10).items] == [posted.id]
        assert [each.id for each in documents.clusters(session, 10).items] == [faster.id]
        chosen = documents.graphs(session, 10, chosen=graph.id).items
        assert [each.id for each in chosen] == [posted.id, graph.id]
