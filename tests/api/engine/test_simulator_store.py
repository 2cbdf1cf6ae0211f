"""Trained simulators by name: stored as they were, refused where they are not what they say."""

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from safetensors.numpy import load, save

from autosync.api.db import Database
from autosync.api.engine import job_queue
from autosync.api.engine.registry import NEAREST, SIMULATORS
from autosync.api.engine.simulator_store import (
    list_simulators,
    remove_simulator,
    simulator_of,
    store_simulator,
)
from autosync.api.engine.submission import enqueue, load_request
from autosync.api.http.app import create_app
from autosync.errors import InvalidInput, NotFound, NotSupported
from autosync.population import encode
from autosync.simulator.learned.features.domain_descriptor import DESCRIPTOR, describe_domain
from autosync.simulator.learned.features.feature_names import (
    SHARD_COLUMNS,
    SUMMARY_COLUMNS,
)
from autosync.simulator.learned.learned_simulators import LearnedSimulator
from autosync.simulator.learned.models.source_trials import KnownTrials, SourceTrials
from autosync.simulator.learned.models.trees import LEAF, Forest, TreesModel
from autosync.simulator.learned.networks.network_model import NetworkModel, Scaling
from tests.api.checkpoints import Files, checkpoint
from tests.api.databases import opened
from tests.api.sample import candidates, small_request

SUMMARY = len(SUMMARY_COLUMNS)


def opinionated(shift: float = 1e-3) -> TreesModel:
    """A tree without splits that no training gave, so that its predictions are nobody else's."""
    model = TreesModel()
    leaf, none = np.full((1, 1), LEAF, np.int16), np.zeros((1, 1))
    model.forest = Forest(none.astype(np.int16), leaf, leaf, none.astype(np.float32))
    descriptors, summary = np.zeros((1, len(DESCRIPTOR))), np.zeros((1, SUMMARY), np.float32)
    source = np.zeros(1, dtype=np.int64)
    model.known = KnownTrials(
        SourceTrials(descriptors, source, summary, np.array([shift]), np.ones(1))
    )
    return model


def network() -> NetworkModel:
    """An LSTM whose weights are those of its seed."""
    model = NetworkModel("lstm")
    shards, summary = (
        Scaling(np.zeros(n), np.full(n, np.inf)) for n in map(len, (SHARD_COLUMNS, SUMMARY_COLUMNS))
    )
    model.scaling = shards, summary
    model.network = model.build()
    return model


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return checkpoint(tmp_path_factory.mktemp("trees"), opinionated())


@pytest.fixture(scope="module")
def lstm(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return checkpoint(tmp_path_factory.mktemp("lstm"), network())


@pytest.fixture
def client(sqlite: Database) -> Iterator[TestClient]:
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture(scope="module")
def empty(module_url: str) -> Iterator[Database]:
    """One database for all that is refused: it stays as it is."""
    with opened(module_url) as database:
        yield database


@pytest.fixture(scope="module")
def refusing(empty: Database) -> Iterator[TestClient]:
    with TestClient(create_app(empty), base_url="http://127.0.0.1") as client:
        yield client


def put(client: TestClient, name: str, files: Files) -> tuple[int, dict[str, object]]:
    parts = dict(zip(("card", "weights"), files, strict=True))
    answer = client.put(f"/v1/simulators/{name}", files=parts)
    return answer.status_code, answer.json()


def names(database: Database) -> list[str]:
    with database.reading() as session:
        return [row.name for row in list_simulators(session)]


def test_what_is_stored_predicts_as_what_was_saved(
    database: Database, trees: Files, tmp_path: Path
) -> None:
    assert store_simulator(database, "mine", *trees)
    assert not store_simulator(database, "mine", *trees)
    domain = small_request().domain
    population = encode([each.strategy for each in candidates(domain, 6)], domain)
    with database.reading() as session:
        found = simulator_of(session, "mine", domain).predict(domain, population)
    made = LearnedSimulator(opinionated()).predict(domain, population)
    assert (found == made).all()
    assert (made != LearnedSimulator(TreesModel()).predict(domain, population)).any()
    other = checkpoint(tmp_path, opinionated(2e-3))
    with pytest.raises(NotSupported, match="another simulator's"):
        store_simulator(database, "mine", *other)
    remove_simulator(database, "mine")
    assert names(database) == []
    with database.reading() as session, pytest.raises(NotFound, match="timeline"):
        simulator_of(session, "mine", domain)


def test_a_simulator_stays_while_a_tuning_needs_it(database: Database, trees: Files) -> None:
    store_simulator(database, "mine", *trees)
    tuning_id = enqueue(database, replace(small_request(), simulator="mine"))
    with pytest.raises(NotSupported, match=tuning_id):
        remove_simulator(database, "mine")
    job_queue.cancel(database, tuning_id)
    remove_simulator(database, "mine")
    with pytest.raises(NotFound, match="'mine'"):
        enqueue(database, replace(small_request(), simulator="mine"))


def test_nearest_is_the_one_trained_on_the_most_similar_domain(
    sqlite: Database, tmp_path: Path
) -> None:
    request = replace(small_request(), simulator=NEAREST)
    with pytest.raises(NotFound, match="no trained simulator"):
        enqueue(sqlite, request)
    here = describe_domain(request.domain)
    for name, shift in (("far", 2.0), ("near", 0.1), ("remote", 5.0)):
        files = checkpoint(tmp_path, TreesModel(), tuple(float(x) for x in here + shift))
        store_simulator(sqlite, name, *files)
    tuning_id = enqueue(sqlite, request)
    with sqlite.reading() as session:
        assert load_request(session, tuning_id).simulator == "near"


def test_over_rest_it_comes_back_to_the_byte(client: TestClient, lstm: Files) -> None:
    status, stored = put(client, "five-clusters", lstm)
    assert (status, stored["kind"], stored["trials"], stored["accuracy"]) == (201, "lstm", 60, 0.9)
    assert put(client, "five-clusters", lstm) == (200, stored)
    listed = client.get("/v1/simulators").json()
    assert listed == {"items": [stored], "bundled": list(SIMULATORS), "next": None}
    assert {"learned", "ensemble", "trees", "lstm", "gat"} < SIMULATORS.keys()
    assert client.get("/v1/simulators/five-clusters").json() == json.loads(lstm[0])
    weights = client.get("/v1/simulators/five-clusters/weights")
    assert weights.content == lstm[1]
    assert 'filename="five-clusters.safetensors"' in weights.headers["content-disposition"]
    assert "five-clusters" in client.get("/fragments/simulators").text
    assert client.delete("/v1/simulators/five-clusters").status_code == 204
    assert client.get("/v1/simulators/five-clusters").status_code == 404


def with_card(**changes: object) -> Callable[[Files], Files]:
    return lambda files: (json.dumps(json.loads(files[0]) | changes).encode(), files[1])


def with_tensor(name: str, *shape: int, value: float = 0.0) -> Callable[[Files], Files]:
    def changed(files: Files) -> Files:
        return files[0], save(load(files[1]) | {name: np.full(shape, value)})

    return changed


REFUSED: dict[str, tuple[Callable[[Files], Files], str]] = {
    "a pickle": (lambda files: (files[0], pickle.dumps(print)), "no tensors"),
    "no bytes": (lambda files: (files[0], b""), "no tensors"),
    "cut off": (lambda files: (files[0], files[1][:-8]), "no tensors"),
    "no card": (lambda files: (b"{}", files[1]), "card"),
    "odd field": (with_card(colour="red"), "colour"),
    "other features": (with_card(feature_version=0), "features of version 0"),
    "impossible accuracy": (with_card(accuracy=1.5), "accuracy"),
    "no such seed": (with_card(seed=2**70), "seed"),
    "other kind": (with_card(kind="ensemble"), "tensor"),
    "a network of another size": (with_card(width=10**9), "does not read"),
    "a tensor more": (with_tensor("spare", 3), "'spare' belongs to no model"),
    "other shape": (with_tensor("summary.center", 3), "shape"),
    "no number": (with_tensor("summary.center", SUMMARY, value=np.nan), "not finite"),
    "a zero scale": (with_tensor("summary.scale", SUMMARY), "not positive"),
    "a negative margin": (with_tensor("calibration.margin", 1, value=-1.0), "negative"),
}


@pytest.mark.parametrize("damage", REFUSED)
def test_what_is_no_checkpoint_is_refused_with_the_reason(
    damage: str, refusing: TestClient, empty: Database, lstm: Files
) -> None:
    change, why = REFUSED[damage]
    status, problem = put(refusing, "it", change(lstm))
    assert status == 422, problem
    assert why in str(problem["detail"]), problem
    assert problem["remedy"], problem
    assert names(empty) == []


@pytest.mark.parametrize("name", ["timeline", "nearest", "Über", "-x", "a" * 33, "a b"])
def test_names_that_could_not_be_typed_are_refused(
    name: str, sqlite: Database, trees: Files
) -> None:
    with pytest.raises(InvalidInput, match="cannot be called"):
        store_simulator(sqlite, name, *trees)


def test_a_tuning_that_names_no_simulator_is_refused(refusing: TestClient) -> None:
    request = {"graph": "resnet50", "cluster": "example-4x1", "simulator": "nobody"}
    answer = refusing.post("/v1/tunings", json=request)
    assert (answer.status_code, answer.json()["thing"]) == (404, "simulator")
    assert "learned" in answer.json()["remedy"]
