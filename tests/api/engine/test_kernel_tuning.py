"""Whole tunings whose trials compute: on the CPU everywhere, and marked `cuda` on one GPU."""

import io
import threading
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch
from fastapi.testclient import TestClient
from sqlalchemy import select

from autosync.api.db import Database
from autosync.api.db.document_store import load_domain
from autosync.api.db.tables import EventRow, TuningRow
from autosync.api.engine.queue_worker import work
from autosync.api.engine.submission import enqueue, load_request
from autosync.api.engine.tuning_request import TuningRequest, same_tuning
from autosync.api.views import reports
from autosync.api.views.runtimes import runtimes_parquet
from autosync.cluster import MessageCost
from autosync.cluster.collective_curve import CollectiveCurve
from autosync.documents import to_data
from autosync.environment import SHARE_GPUS_VARIABLE
from autosync.search.loop.settings import Settings
from autosync.trials.request_names import ComputeDevice
from tests.domains import domain_of, grid_cluster

GPU = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="NOT VERIFIED: this machine has no NVIDIA GPU"
)
SETTINGS = Settings(budget=2, proposals=16, repeats=2, warmup=1, iterations=2)


@pytest.mark.parametrize(
    ("device", "ranks", "words"),
    [
        ("cpu", 2, "kernels on the CPU"),
        # with three ranks, which share the GPU, messages are timed, too
        pytest.param("cuda", 3, "CUDA kernels, gloo", marks=[pytest.mark.cuda, GPU]),
    ],
)
def test_a_tuning_measures_its_kernels_and_keeps_its_records(
    sqlite: Database,
    device: ComputeDevice,
    ranks: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SHARE_GPUS_VARIABLE, "1")
    given = domain_of(cluster=grid_cluster(ranks))
    request = TuningRequest(given, SETTINGS, launcher="local", compute="kernels", device=device)
    tuning_id = enqueue(sqlite, request)
    with sqlite.reading() as session:
        assert load_request(session, tuning_id).workload == request.workload
    work(str(sqlite.engine.url), threading.Event(), once=True, trains=False)
    with sqlite.reading() as session:
        tuning = reports.tuning(session, tuning_id)
        assert tuning.error is None
        assert (tuning.state, tuning.profile_source) == ("finished", "measured")
        assert (tuning.compute, tuning.compute_device) == ("kernels", device)
        told = list(session.scalars(select(EventRow.message)))
        profile = load_domain(session, session.get_one(TuningRow, tuning_id).domain_id).profile
    assert any("predicting from" in message for message in told)
    assert f"{ranks} ranks at once" in profile.note
    assert profile.forward_seconds != given.profile.forward_seconds
    records = pq.read_table(io.BytesIO(b"".join(runtimes_parquet(sqlite)))).to_pylist()
    assert len(records) >= 2
    for record in records:
        assert record["error"] is None
        assert record["step_seconds"] > 0
        assert record["launcher"].startswith(f"local (unshaped links), {words}")
        assert ("gpu" in record["versions"]) == (device == "cuda")


def test_what_was_measured_is_no_other_domain() -> None:
    given = domain_of()
    cost = MessageCost("all_reduce", 1e-4, 0.0, 0.0)
    curve = CollectiveCurve("all_reduce", 4, 4, (8.0, 1024.0), (3e-5, 4e-5))
    # as a probe over shaped links leaves it
    found = replace(given.cluster, costs=(cost,), curves=(curve,), link_seconds_per_send=1e-6)
    probed = replace(given, cluster=found)
    timed = replace(probed, profile=replace(given.profile, update_seconds=1.0, source="measured"))
    assert same_tuning(given, probed, "waited")
    assert same_tuning(given, timed, "kernels")
    assert not same_tuning(given, timed, "waited")
    assert not same_tuning(probed, given, "waited")
    assert not same_tuning(domain_of(cluster=grid_cluster(2)), probed, "kernels")
    unprobed = replace(given, cluster=replace(given.cluster, curves=(curve,)))
    assert not same_tuning(given, unprobed, "waited")


def test_a_request_names_what_computes(client: TestClient, ids: dict[str, str]) -> None:
    body = {**ids, "launcher": "local"}
    refused = client.post("/v1/tunings", json={**body, "compute_device": "cuda"})
    assert refused.status_code == 422
    assert "leaves a GPU idle" in refused.text
    refused = client.post("/v1/tunings", json={**body, "compute": "kernels", "byte_scale": 0.5})
    assert "byte_scale is 0.5" in refused.text
    profile = to_data(domain_of().profile)
    refused = client.post("/v1/tunings", json={**body, "compute": "kernels", "profile": profile})
    assert "profile has no effect on kernels" in refused.text
    assert client.get("/v1/tunings").json()["items"] == []
    queued = client.post(
        "/v1/tunings", json={**body, "compute": "kernels", "compute_device": "cuda"}
    ).json()
    assert (queued["compute"], queued["compute_device"]) == ("kernels", "cuda")
    assert (queued["byte_scale"], queued["time_scale"]) == (1.0, 1.0)
