"""Over REST and in pages: jobs on other numbers of nodes, collectives, and logs of nccl-tests."""

import html
import re
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from autosync.api.engine.service_limits import UNLIMITED, ServiceLimits
from autosync.cluster import Device
from autosync.documents import to_data, to_json
from autosync.profiling import estimate_profile
from tests.api.http.dashboard.test_pages import text_of
from tests.api.http.forms import given_token
from tests.autosync.interop.test_nccl_tests import HEADING, NEW, ROWS
from tests.domains import chain_graph

PAIR = """
name: pair
backend: nccl
transport: infiniband
nodes:
  - {address: a, devices: [{type: a100, count: 2}], nvswitch: true, nics: 2, nic_gbps: 200}
  - {address: b, devices: [{type: a100, count: 2}], nvswitch: true, nics: 2, nic_gbps: 200}
"""


@pytest.fixture
def limits() -> ServiceLimits:
    """Without any, predictions are answered in this process."""
    return UNLIMITED


@pytest.fixture
def ids(client: TestClient) -> dict[str, str]:
    graph = client.post("/v1/graphs", content=to_json(chain_graph())).json()["id"]
    return {"graph": graph, "cluster": client.post("/v1/clusters", content=PAIR).json()["id"]}


def test_a_prediction_on_nccl_is_the_same_by_every_route(
    client: TestClient, ids: dict[str, str]
) -> None:
    """What replication adds to compute is added in rankings and comparisons, too."""
    job = {**ids, "step_seconds": 0.02, "precision": "bf16", "accumulate": 3}
    (given,) = client.post("/v1/predict", json={**job, "strategies": ["ddp"]}).json()["items"]
    timeline = {"simulator": "timeline", "proposals": 8}
    ranked = client.post("/v1/rank", json={**job, **timeline, "top": 256}).json()
    ddp = next(each for each in ranked["items"] if each["origin"] == "ddp")
    for name in ("predicted_seconds", "low_seconds", "high_seconds", "binding"):
        assert ddp[name] == pytest.approx(given[name]), name
    assert ranked["ddp_seconds"] == pytest.approx(given["predicted_seconds"])
    assert ranked["constants"] == given["constants"] == "by-class"
    assert set(ranked["warnings"]) <= set(given["warnings"])
    assert ranked["limit_seconds"] == pytest.approx(given["limit_seconds"])
    (point,) = client.post("/v1/scale", json={**job, "nodes": [2]}).json()["points"]
    assert point["step_seconds"] == pytest.approx(given["predicted_seconds"])
    assert point["efficiency"] == pytest.approx(3 * 0.02 / point["step_seconds"])
    body = {"graph": ids["graph"], "clusters": [{"cluster": ids["cluster"]}], **timeline}
    (alone,) = client.post("/v1/compare", json={**body, "precision": "bf16"}).json()["items"]
    (added,) = client.post(
        "/v1/compare", json={**body, "precision": "bf16", "accumulate": 3}
    ).json()["items"]
    assert alone["predicted_seconds"] < added["predicted_seconds"]
    assert alone["samples_per_second"] < added["samples_per_second"]
    assert alone["warnings"]


def test_how_a_job_computes_is_said_in_one_way(client: TestClient, ids: dict[str, str]) -> None:
    asked = {**ids, "strategies": ["ddp"]}

    def step(**settings: object) -> float:
        (answer,) = client.post("/v1/predict", json={**asked, **settings}).json()["items"]
        seconds: float = answer["predicted_seconds"]
        return seconds

    assert step(precision="bf16") < step()
    assert step(recompute=True) > step()
    assert step(step_seconds=1.0) > 1.0
    (known,) = client.post("/v1/predict", json={**asked, "step_seconds": 1.0}).json()["items"]
    assert not any("compute is an estimate" in each for each in known["warnings"])
    profile = to_data(estimate_profile(chain_graph(), "a100"))
    for wrong, thing in (
        ({"precision": "fp4"}, "precision"),
        ({"step_seconds": 0}, "step_seconds"),
        ({"accumulate": 0}, "accumulate"),
        ({"recompute": True, "profile": profile}, "recompute"),
        ({"step_seconds": 1.0, "profile": profile}, "step_seconds"),
    ):
        for path in ("/v1/predict", "/v1/rank", "/v1/scale"):
            refused = client.post(path, json={**ids, **wrong})
            assert (refused.status_code, thing in refused.json()["detail"]) == (422, True), wrong


def test_a_job_is_scaled(client: TestClient, ids: dict[str, str]) -> None:
    found = client.post("/v1/scale", json={**ids, "nodes": [4, 1, 2, 2]}).json()
    assert [point["ranks"] for point in found["points"]] == [2, 4, 8]
    for point in found["points"]:
        assert point["low_seconds"] < point["step_seconds"] < point["high_seconds"]
        assert point["binding"]
    assert any("compute is an estimate" in each for each in found["warnings"])
    unknown = client.post("/v1/scale", json={**ids, "strategy": "nobody"})
    assert (unknown.status_code, unknown.json()["thing"]) == (404, "strategy")
    assert client.post("/v1/scale", json={**ids, "nodes": []}).status_code == 422
    mixed = client.post("/v1/scale", json={**ids, "cluster": "example-mixed", "nodes": [99]})
    assert (mixed.status_code, mixed.json()["thing"]) == (409, "nodes")


def test_one_gpu_updates_as_several_do(client: TestClient, ids: dict[str, str]) -> None:
    profile = replace(estimate_profile(chain_graph(), "v100"), update_seconds=0.5)
    job = {**ids, "cluster": "aws-p3-2xlarge-x4", "profile": to_data(profile), "accumulate": 2}
    found = client.post("/v1/scale", json={**job, "nodes": [1, 2]}).json()["points"]
    alone = 2 * profile.compute_seconds + 0.5
    assert found[0]["step_seconds"] == pytest.approx(alone)
    assert found[0]["samples_per_second"] == pytest.approx(2 * profile.batch_size / alone)
    assert found[1]["efficiency"] == pytest.approx(alone / found[1]["step_seconds"])


def test_one_gpu_is_as_uncertain_as_its_compute(client: TestClient, ids: dict[str, str]) -> None:
    job = {**ids, "cluster": "aws-p3-2xlarge-x4", "nodes": [1]}
    estimated = client.post("/v1/scale", json=job).json()
    (point,) = estimated["points"]
    assert point["low_seconds"] < point["step_seconds"] < point["high_seconds"]
    assert any("compute is an estimate" in each for each in estimated["warnings"])
    measured = to_data(replace(estimate_profile(chain_graph(), "v100"), source="measured"))
    for known in ({"step_seconds": 0.02}, {"profile": measured}):
        stated = client.post("/v1/scale", json={**job, **known}).json()
        (point,) = stated["points"]
        assert point["low_seconds"] == point["step_seconds"] == point["high_seconds"]
        assert not any("compute is an estimate" in each for each in stated["warnings"])


def test_few_nodes_compute_as_fast_as_their_own_devices(
    client: TestClient, ids: dict[str, str]
) -> None:
    kinds = {"a": "p100", "b": "p100", "c": "v100"}
    nodes = "".join(
        f"  - {{address: {name}, devices: [{{type: {kind}}}], bandwidth_gbps: 9.56}}\n"
        for name, kind in kinds.items()
    )
    cluster = client.post("/v1/clusters", content=f"name: slow-first\nnodes:\n{nodes}").json()["id"]
    profile = estimate_profile(chain_graph(), "v100")
    job = {**ids, "cluster": cluster, "profile": to_data(profile), "nodes": [1, 2]}
    one, two = client.post("/v1/scale", json=job).json()["points"]
    slower = profile.factor_on(Device("p100"))
    computing = slower * profile.compute_seconds + profile.update_seconds
    assert slower > 1
    assert one["step_seconds"] == pytest.approx(computing)
    assert two["efficiency"] == pytest.approx(computing / two["step_seconds"])


@pytest.mark.parametrize(("devices", "on_one"), [(2, "ddp"), (1, "the model")])
def test_what_does_not_fit_is_told_of_each_number_of_nodes(
    client: TestClient, ids: dict[str, str], devices: int, on_one: str
) -> None:
    def on(memory_gb: float) -> dict[str, object]:
        few = PAIR.replace("count: 2", f"count: {devices}, memory_gb: {memory_gb:f}")
        cluster = client.post("/v1/clusters", content=few).json()["id"]
        return {**ids, "cluster": cluster, "nodes": [1, 2]}

    told = " ".join(client.post("/v1/scale", json=on(0.00001)).json()["warnings"])
    assert f"{on_one} does not fit on 1 node: a rank needs" in told
    assert "ddp does not fit on 2 nodes: a rank needs" in told
    roomy = client.post("/v1/scale", json=on(1.0)).json()
    assert "does not fit" not in " ".join(roomy["warnings"])


def test_collectives_are_predicted(client: TestClient, ids: dict[str, str]) -> None:
    asked = {"cluster": ids["cluster"], "operation": "all_gather", "sizes_bytes": [1024, 2**30]}
    found = client.post("/v1/collectives", json={**asked, "nodes": 3}).json()
    assert (found["ranks"], found["nodes"], found["backend"]) == (6, 3, "nccl")
    small, large = found["rows"]
    assert small["seconds"] < large["seconds"]
    assert large["busbw_gbytes_per_second"] == pytest.approx(2**30 * 5 / 6 / large["seconds"] / 1e9)
    assert small["algorithm"]
    forced = client.post("/v1/collectives", json={**asked, "protocol": "LL"}).json()
    assert {row["protocol"] for row in forced["rows"]} == {"LL"}
    for wrong in ({"algorithm": "Magic"}, {"sizes_bytes": [0]}, {"cluster": "nowhere"}, {"op": 1}):
        refused = client.post("/v1/collectives", json={**asked, **wrong})
        assert refused.status_code in (404, 422), refused.text
        assert refused.json()["remedy"]


def test_a_log_makes_a_cluster_with_its_curves(client: TestClient, ids: dict[str, str]) -> None:
    path = f"/v1/clusters/{ids['cluster']}/calibrate"
    answer = client.post(path, content=NEW)
    assert answer.status_code == 201, answer.text
    found = answer.json()
    assert found["id"] != ids["cluster"]
    assert found["curves"][0]["curve"].startswith("all_reduce of 4 ranks on 2 nodes")
    assert found["curves"][0]["warning"] == ""
    stored = client.get(found["location"]).json()
    assert stored["curves"][0]["nodes"] == 2
    asked = {"cluster": found["id"], "sizes_bytes": [2**20]}
    table = client.post("/v1/collectives", json=asked).json()
    assert table["rows"][0]["seconds"] == pytest.approx(105e-6)
    assert "measured" in table["warnings"][0]
    assert client.post(path, content=NEW).status_code == 200
    other = client.post("/v1/clusters/aws-p5-48xlarge-x4/calibrate", content=NEW).json()
    assert "does not count" in other["curves"][0]["warning"]


def test_a_log_is_told_where_something_else_counts(client: TestClient, ids: dict[str, str]) -> None:
    costed = client.post("/v1/clusters/rtx-2080-ti-2x4-10gbe/calibrate", content=NEW).json()
    assert "without `costs` the curves count" in " ".join(costed["warnings"])
    gloo = client.post("/v1/clusters/example-4x1/calibrate", content=NEW)
    assert (gloo.status_code, gloo.json()["thing"]) == (409, "backend")
    for version, told in (("2.21", False), ("2.2", True)):
        stated = f"{PAIR}nccl_version: '{version}'\n"
        cluster = client.post("/v1/clusters", content=stated).json()["id"]
        found = client.post(f"/v1/clusters/{cluster}/calibrate", content=NEW).json()
        assert bool(found["warnings"]) is told, version


def test_a_log_of_unequal_nodes_is_told_not_to_count(
    client: TestClient, ids: dict[str, str]
) -> None:
    """Calibration and the table say the same of it."""
    uneven = PAIR.replace("count: 2", "count: 3", 1).replace("count: 2", "count: 1")
    cluster = client.post("/v1/clusters", content=uneven).json()["id"]
    found = client.post(f"/v1/clusters/{cluster}/calibrate", content=NEW).json()
    assert "is predicted as one of 6 ranks on 2 nodes" in found["curves"][0]["warning"]
    assert "does not count" in found["curves"][0]["warning"]
    table = client.post("/v1/collectives", json={"cluster": found["id"]}).json()
    assert any("no curve of the cluster file counts" in each for each in table["warnings"])


def test_what_a_log_does_not_say_is_stated_over_rest(
    client: TestClient, ids: dict[str, str]
) -> None:
    path = f"/v1/clusters/{ids['cluster']}/calibrate"
    bare = client.post(path, content=HEADING + ROWS)
    assert (bare.status_code, "which collective" in bare.json()["detail"]) == (422, True)
    stated = {"operation": "all_reduce", "ranks": "4", "nodes": "2"}
    assert client.post(path, content=HEADING + ROWS, params=stated).status_code == 201
    assert client.post(path, content=b"\xff nothing").status_code == 422
    assert client.post(path, content=NEW, params={"hosts": "2"}).status_code == 422
    assert client.post("/v1/clusters/nowhere/calibrate", content=NEW).status_code == 404


def test_a_page_predicts(client: TestClient, ids: dict[str, str]) -> None:
    assert "A cluster you need not have" in text_of(client, "/predict")
    of = f"graph={ids['graph']}&cluster={ids['cluster']}"
    asked = f"{of}&nodes=1,2,4&operation=broadcast&accumulate=2&batch_size="
    page = client.get(f"/predict/answer?{asked}").text
    assert "comes in by JavaScript" in page
    parts = [html.unescape(each) for each in re.findall(r'hx-get="(/predict/[^"]+)"', page)]
    strategies, scale, collectives = (client.get(part).text for part in parts)
    assert (scale.count("<figure"), collectives.count("<figure")) == (1, 1)
    for words in ("Bound by", "Between", "compute is an estimate"):
        assert words in strategies
    assert "compute is an estimate" in scale
    assert "broadcast as nccl-tests" in collectives
    for wrong, words in (("&nodes=1,x", "'x'"), ("&accumulate=0", "accumulate")):
        assert words in text_of(client, f"/predict/answer?{of}{wrong}", 422)
    assert "there is no cluster" in text_of(client, "/predict/answer?cluster=nowhere", 422)
    assert "there is no graph" in text_of(client, "/predict/answer?graph=nothing", 422)


@pytest.mark.parametrize("choice", ["optimizer=sgd", "strategy=fsdp2", "operation=broadcast"])
def test_choices_that_change_a_prediction_are_not_folded_away(
    client: TestClient, choice: str
) -> None:
    opened = '<details class="more" open>'
    assert opened in client.get(f"/predict?{choice}").text
    assert opened not in client.get("/predict?strategy=ddp&operation=all_reduce&accumulate=1").text


def test_a_part_that_cannot_be_predicted_says_why(client: TestClient, ids: dict[str, str]) -> None:
    of = f"graph={ids['graph']}&cluster=example-mixed&nodes=9&operation=send_recv"
    assert client.get(f"/predict/strategies?{of}").status_code == 200
    scale = client.get(f"/predict/scale?{of}")
    assert (scale.status_code, scale.json()["thing"]) == (409, "nodes")
    assert "its nodes differ" in scale.json()["detail"]
    collectives = client.get(f"/predict/collectives?{of}")
    assert "no send_recv is predicted" in collectives.json()["detail"]


def test_a_log_is_uploaded_on_the_page_of_its_cluster(
    client: TestClient, ids: dict[str, str]
) -> None:
    fields = {"cluster": ids["cluster"], **given_token(client)}
    file = {"document": ("sweep.log", NEW.encode())}
    done = client.post("/clusters/calibrate", data=fields, files=file, follow_redirects=False)
    assert done.status_code == 303, done.text
    assert "all_reduce of 4 ranks on 2 nodes" in text_of(client, done.headers["location"])
    wrong = client.post(
        "/clusters/calibrate", data=fields, files={"document": ("x.log", b"no table")}
    )
    assert (wrong.status_code, "has no table of nccl-tests" in wrong.text) == (422, True)
    costed = {**fields, "cluster": "rtx-2080-ti-2x4-10gbe"}
    told = client.post("/clusters/calibrate", data=costed, files=file)
    assert (told.status_code, "without `costs` the curves count" in told.text) == (200, True)
