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
from autosync.api.engine.registry import RETIRED, SIMULATORS
from autosync.api.engine.simulator_store import (
    list_simulators,
    remove_simulator,
    simulator_of,
    store_simulator,
)
from autosync.api.engine.submission import enqueue
from autosync.api.http.app import create_app
from autosync.errors import InvalidInput, NotFound, NotSupported
from autosync.population import encode
from autosync.simulator.learned.features.feature_names import SUMMARY_COLUMNS
from autosync.simulator.learned.learned_simulator import LearnedSimulator
from tests.api.checkpoints import Files, checkpoint, opinionated
from tests.api.databases import opened
from tests.api.sample import candidates, small_request

SUMMARY = len(SUMMARY_COLUMNS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return checkpoint(tmp_path_factory.mktemp("made"), opinionated())


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
    database: Database, files: Files, tmp_path: Path
) -> None:
    assert store_simulator(database, "mine", *files)
    assert not store_simulator(database, "mine", *files)
    domain = small_request().domain
    population = encode([each.strategy for each in candidates(domain, 6)], domain)
    with database.reading() as session:
        found = simulator_of(session, "mine").predict(domain, population)
    made = opinionated().predict(domain, population)
    np.testing.assert_allclose(found, made, rtol=1e-12)
    assert (made != LearnedSimulator().predict(domain, population)).any()
    other = checkpoint(tmp_path, opinionated(0.2))
    with pytest.raises(NotSupported, match="another simulator's"):
        store_simulator(database, "mine", *other)
    remove_simulator(database, "mine")
    assert names(database) == []
    with database.reading() as session, pytest.raises(NotFound, match="timeline"):
        simulator_of(session, "mine")


def test_a_simulator_stays_while_a_tuning_needs_it(database: Database, files: Files) -> None:
    store_simulator(database, "mine", *files)
    tuning_id = enqueue(database, replace(small_request(), simulator="mine"))
    with pytest.raises(NotSupported, match=tuning_id):
        remove_simulator(database, "mine")
    job_queue.cancel(database, tuning_id)
    remove_simulator(database, "mine")
    with pytest.raises(NotFound, match="'mine'"):
        enqueue(database, replace(small_request(), simulator="mine"))


def test_over_rest_it_comes_back_to_the_byte(client: TestClient, files: Files) -> None:
    status, stored = put(client, "five-clusters", files)
    assert (status, stored["kind"], stored["trials"], stored["accuracy"]) == (
        201,
        "gaussian process",
        60,
        0.9,
    )
    assert put(client, "five-clusters", files) == (200, stored)
    listed = client.get("/v1/simulators").json()
    assert listed == {"items": [stored], "bundled": list(SIMULATORS), "next": None}
    assert {"learned", "timeline", "analytic"} == SIMULATORS.keys()
    assert client.get("/v1/simulators/five-clusters").json() == json.loads(files[0])
    weights = client.get("/v1/simulators/five-clusters/weights")
    assert weights.content == files[1]
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
    "an earlier version": (with_card(version=1), "version: Input should be 2, got 1"),
    "other kind": (with_card(kind="ensemble"), "kind"),
    "more domains than trials": (with_card(sources=[]), "a domain that is not there"),
    "a tensor more": (with_tensor("spare", 3), "'spare' belongs to no simulator"),
    "other shape": (with_tensor("kernel.center", 3), "shape"),
    "no number": (with_tensor("kernel.center", SUMMARY, value=np.nan), "not finite"),
    "a zero scale": (with_tensor("kernel.scale", SUMMARY), "not positive"),
    "a negative noise": (with_tensor("kernel.noise", 1, value=-1.0), "not 0.001 to 1"),
    "no share": (with_tensor("kernel.correlations", 3, value=1.5), "not 0 to 1"),
}


@pytest.mark.parametrize("damage", REFUSED)
def test_what_is_no_checkpoint_is_refused_with_the_reason(
    damage: str, refusing: TestClient, empty: Database, files: Files
) -> None:
    change, why = REFUSED[damage]
    status, problem = put(refusing, "it", change(files))
    assert status == 422, problem
    assert why in str(problem["detail"]), problem
    assert problem["remedy"], problem
    assert names(empty) == []


@pytest.mark.parametrize("name", ["timeline", "ensemble", "Über", "-x", "a" * 33, "a b"])
def test_names_that_could_not_be_typed_are_refused(
    name: str, sqlite: Database, files: Files
) -> None:
    with pytest.raises(InvalidInput, match="cannot be called"):
        store_simulator(sqlite, name, *files)


@pytest.mark.parametrize("name", ["nobody", *RETIRED])
def test_a_tuning_that_names_no_simulator_is_refused_with_the_way_out(
    name: str, refusing: TestClient
) -> None:
    """One that earlier versions had is told apart."""
    request = {"graph": "resnet50", "cluster": "example-4x1", "simulator": name}
    answer = refusing.post("/v1/tunings", json=request)
    assert (answer.status_code, answer.json()["thing"]) == (404, "simulator")
    assert ("no longer there" in answer.json()["detail"]) == (name in RETIRED)
    assert "learned" in answer.json()["remedy"]
