"""What never changes is sent once."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from autosync.api.db import Database
from autosync.api.http.app import create_app
from tests.api.sample import claimed, finished, run_search, small_request

REQUEST = small_request()


@pytest.fixture
def client(sqlite: Database) -> Iterator[TestClient]:
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        yield client


def test_what_is_known_is_not_sent_again(client: TestClient, sqlite: Database) -> None:
    base = f"/v1/tunings/{finished(sqlite, REQUEST)}"
    tuning = client.get(base).json()
    for path in (
        base,
        f"{base}/strategies",
        f"{base}/strategies?limit=2",
        f"{base}/trials",
        f"{base}/bundle",
        f"{base}/timeline",
        f"{base}/trace",
        f"/v1/graphs/{tuning['graph_id']}",
        f"/v1/clusters/{tuning['cluster_id']}",
        f"/v1/strategies/{tuning['result']['strategy_id']}",
    ):
        first = client.get(path)
        assert first.status_code == 200
        tag = first.headers["etag"]
        for known in (tag, f'W/{tag}, "other"', "*"):
            again = client.get(path, headers={"If-None-Match": known})
            assert (again.status_code, again.content) == (304, b""), path
            assert again.headers["etag"] == tag
        other = client.get(path, headers={"If-None-Match": '"other"'})
        assert other.content == first.content
    pages = [client.get(f"{base}/trials?limit={n}").headers["etag"] for n in (2, 3)]
    assert pages[0] != pages[1]


def test_what_changes_has_another_tag(client: TestClient, sqlite: Database) -> None:
    held, store = claimed(sqlite, REQUEST)
    for path in (f"/v1/tunings/{held.job_id}", f"/v1/tunings/{held.job_id}/trials"):
        before = client.get(path).headers["etag"]
        assert client.get(path, headers={"If-None-Match": before}).status_code == 304
    run_search(store, REQUEST)
    for path in (f"/v1/tunings/{held.job_id}", f"/v1/tunings/{held.job_id}/trials"):
        assert client.get(path, headers={"If-None-Match": before}).status_code == 200
    missing = client.get(f"/v1/tunings/{'0' * 32}/trials", headers={"If-None-Match": "*"})
    assert missing.status_code == 404
