"""The next version of the simulator: trained under a lease, judged, kept, brought back."""

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from autosync.api.db import Database
from autosync.api.db.tables import (
    DomainRow,
    SimulatorRow,
    SimulatorTrainingRow,
    SimulatorVersionRow,
    StrategyRow,
    TrialRow,
)
from autosync.api.engine import job_queue, measured_trials, version_training
from autosync.api.engine.database_store import LeaseLost
from autosync.api.engine.job_queue import enqueue_training
from autosync.api.engine.measured_trials import (
    measured_sources,
    read_measured_trials,
    source_trials,
    without_refused,
)
from autosync.api.engine.queue_worker import MOST_TRAINING_CLAIMS, train_next
from autosync.api.engine.simulator_store import (
    check_name,
    remove_simulator,
    simulator_of,
    version_in_use,
)
from autosync.api.engine.submission import enqueue
from autosync.api.engine.version_training import (
    NOTHING_NEW,
    TrainedVersion,
    VersionFigures,
    _store,
    _task,
    has_new_trials,
    run_training,
)
from autosync.api.http.app import create_app
from autosync.cluster import MessageCost
from autosync.cluster.collective_curve import CollectiveCurve
from autosync.documents import to_json
from autosync.errors import InvalidInput, NotSupported
from autosync.population import encode
from autosync.search.space import SPACES
from autosync.simulator.learned.checkpoint import parse_card
from autosync.simulator.learned.features.feature_names import FEATURE_VERSION
from autosync.simulator.learned.training import SplitTrials
from autosync.trials.launchers.local_launcher import DESCRIPTION
from autosync.trials.request_names import GPU_IN_TURNS
from tests.api.checkpoints import checkpoint, opinionated
from tests.api.http.forms import given_token
from tests.api.sample import (
    candidates,
    claimed,
    finished,
    proposal,
    result,
    run_search,
    small_request,
)
from tests.api.simulator_versions import store_versions
from tests.domains import domain_of, layered_graph
from tests.simulator.measurements import measured, write

NEVER = threading.Event()


@pytest.fixture
def small_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of the bundled measurements, which take a minute to learn from."""
    folder = tmp_path / "measured"
    write(folder, [measured(1.0, seed=1, count=24), measured(0.5, seed=2, count=24)])
    monkeypatch.setattr(version_training, "data_folder", lambda name: folder)
    return folder


@pytest.fixture
def client(sqlite: Database) -> Iterator[TestClient]:
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        yield client


def test_a_tuning_teaches_the_next_version(
    sqlite: Database, client: TestClient, small_dataset: Path
) -> None:
    """One training for all that a service does with a version, since each takes seconds."""
    tuning_id = finished(sqlite, small_request(12))
    (queued,) = client.get("/v1/simulators/trainings").json()["items"]
    assert (queued["state"], queued["tuning_id"]) == ("queued", tuning_id)
    asked = client.post("/v1/simulators/trainings")
    assert asked.status_code == 202
    assert asked.json()["id"] == queued["id"], "one that waits sees all trials"

    assert train_next(sqlite, "here:1", NEVER)
    assert not train_next(sqlite, "here:1", NEVER)
    done = client.get(asked.headers["location"]).json()
    assert (done["state"], done["version"], done["error"]) == ("finished", 1, None)
    found = client.get("/v1/simulators/versions").json()
    (version,) = found["items"]
    assert (version["number"], version["parent"], version["domains"]) == (1, 0, 3)
    names = ("accuracy", "parent_accuracy", "pick_accuracy", "parent_pick_accuracy")
    better = VersionFigures(*(version[name] for name in names)).not_worse
    assert version["promoted"] == better
    assert found["in_use"] == int(better)
    card = client.get("/v1/simulators/version-1").json()
    assert card["parents"] == ["version-0"]
    assert card["dataset"]
    assert {source["graph"] for source in card["sources"]} == {small_request().domain.graph.name}
    with sqlite.reading() as session:
        began = session.get_one(SimulatorTrainingRow, queued["id"]).started_at
    assert began is not None
    for before, new in ((1.0, True), (3600.0, False)):  # it may have read before one was stored
        with sqlite.writing() as session:
            session.execute(update(TrialRow).values(created_at=began - before))
        assert has_new_trials(sqlite) == new
        _trains_no_version(sqlite, client)
    for updated in (True, False):  # of features of another version all trials are new
        with sqlite.writing() as session:
            row = session.get_one(SimulatorRow, "version-1")
            row.feature_version = FEATURE_VERSION - updated
        assert has_new_trials(sqlite) == updated
    finished(sqlite, replace(small_request(4), byte_scale=0.25))  # too few to learn from
    _trains_no_version(sqlite, client)

    promoted = client.post("/v1/simulators/versions/1/promote").json()
    assert promoted["in_use"] == 1
    request = replace(small_request(), simulator="learned")
    told = client.get(f"/v1/tunings/{enqueue(sqlite, request)}").json()
    assert (told["simulator"], told["simulator_version"]) == ("learned", 1)
    population = encode([each.strategy for each in candidates(request.domain, 6)], request.domain)
    with sqlite.reading() as session:
        one, bundled = (
            simulator_of(session, "learned", number).predict(request.domain, population)
            for number in (1, 0)
        )
        used = simulator_of(session, "learned")
    assert (one != bundled).any()
    np.testing.assert_array_equal(used.predict(request.domain, population), one)
    token = given_token(client)
    page = client.get("/simulators").text
    assert "in use" in page
    assert (
        client.post("/simulators/0/promote", data=token, follow_redirects=False).status_code == 303
    )
    with sqlite.reading() as session:
        assert version_in_use(session) == 0
    assert client.post("/v1/simulators/versions/7/promote").status_code == 404
    assert client.post(f"/simulators/{2**70}/promote", data=token).status_code == 422
    with pytest.raises(NotSupported, match="versions are kept"):
        remove_simulator(sqlite, "version-1")
    with pytest.raises(InvalidInput, match="cannot be called"):
        check_name("version-9")


def _trains_no_version(database: Database, client: TestClient) -> None:
    asked = client.post("/v1/simulators/trainings")
    assert train_next(database, "here:1", NEVER)
    done = client.get(asked.headers["location"]).json()
    assert (done["state"], done["version"], done["message"]) == ("finished", None, NOTHING_NEW)


def test_reading_what_was_measured_holds_no_transaction_and_parses_nothing(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(sqlite, small_request(12))
    finished(sqlite, replace(small_request(12), byte_scale=0.25))
    whole = read_measured_trials(sqlite)
    monkeypatch.setattr(measured_trials, "ROWS", 7)
    monkeypatch.setattr(measured_trials, "DOCUMENTS", 3)
    monkeypatch.setattr(measured_trials, "from_json", None)
    with sqlite.reading() as session:
        rows = session.scalar(select(func.count()).where(TrialRow.step_seconds.is_not(None)))
    assert read_measured_trials(sqlite) == whole
    assert len(whole.trials) == rows
    monkeypatch.setattr(measured_trials, "MOST_TRIALS", 7)
    assert read_measured_trials(sqlite).trials == whole.trials[-7:]


@pytest.mark.parametrize(
    "where", [DESCRIPTION, f"testbed (4 nodes), CUDA kernels, nccl, 4 ranks {GPU_IN_TURNS}"]
)
def test_trials_that_do_not_stand_for_the_cluster_teach_nothing(
    sqlite: Database, where: str
) -> None:
    request = small_request(12)
    _, store = claimed(sqlite, request)
    run_search(store, request, launcher=where)
    assert store.trials()
    assert read_measured_trials(sqlite).trials == ()


def test_what_gloo_sends_for_a_cluster_on_nccl_teaches_nothing(sqlite: Database) -> None:
    finished(sqlite, request := small_request(12))
    read = read_measured_trials(sqlite)
    ((key, texts),) = read.domains.items()
    nccl = to_json(replace(request.domain.cluster, backend="nccl"))
    read = replace(read, domains={key: replace(texts, cluster=nccl)})
    assert source_trials(read) == []
    on_gpus = tuple(replace(trial, device="cuda") for trial in read.trials)
    assert len(source_trials(replace(read, trials=on_gpus))) == 1


def test_whoever_lost_the_claim_stores_no_version(
    sqlite: Database, small_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite.writing() as session:
        enqueue_training(session)
    first = job_queue.claim(sqlite, "here:1", -1.0, kind="training")
    assert first is not None
    second = job_queue.claim(sqlite, "there:2", kind="training")
    assert second is not None
    assert (second.job_id, second.fence) == (first.job_id, 2)
    assert job_queue.claim(sqlite, "elsewhere:3", kind="training") is None
    with pytest.raises(LeaseLost, match="taken over"):
        run_training(sqlite, first)
    with pytest.raises(LeaseLost, match="taken over"):
        job_queue.fail(sqlite, first, "too late")
    assert not job_queue.heartbeat(sqlite, first, 10.0)
    assert job_queue.heartbeat(sqlite, second, 10.0)


def test_a_version_whose_card_is_of_an_earlier_autosync_keeps_no_training_back(
    sqlite: Database,
) -> None:
    store_versions(sqlite)
    with sqlite.writing() as session:
        row = session.get_one(SimulatorRow, "version-3")
        row.feature_version, row.card = FEATURE_VERSION - 1, '{"version": 1}'
        enqueue_training(session)
    held = job_queue.claim(sqlite, "here:1", kind="training")
    assert held is not None
    task = _task(sqlite, held)
    assert (task.parent, task.known) == (0, "")


def test_a_worker_that_stops_gives_the_training_back(sqlite: Database) -> None:
    with sqlite.writing() as session:
        enqueue_training(session)
    stop = threading.Event()
    stop.set()
    assert train_next(sqlite, "here:1", stop)
    again = job_queue.claim(sqlite, "here:1", kind="training")
    assert again is not None
    assert again.fence == 2


def test_a_training_whose_worker_is_restarted_a_few_times_comes_to_its_end(
    sqlite: Database,
) -> None:
    with sqlite.writing() as session:
        training_id = enqueue_training(session)
    stopped = threading.Event()
    stopped.set()
    for stop in (*[stopped] * 5, NEVER):
        assert train_next(sqlite, "here:1", stop)
    with sqlite.reading() as session:
        assert session.get_one(SimulatorTrainingRow, training_id).state == "finished"


def test_what_takes_its_worker_down_is_given_up(sqlite: Database) -> None:
    with sqlite.writing() as session:
        training_id = enqueue_training(session)
    for _ in range(MOST_TRAINING_CLAIMS):
        assert job_queue.claim(sqlite, "here:1", -1.0, kind="training") is not None
    train_next(sqlite, "here:1", NEVER)
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        failed = client.get(f"/v1/simulators/trainings/{training_id}").json()
    assert failed["state"] == "failed"
    assert "never came to its end" in failed["error"]


def test_trainings_that_end_at_the_same_moment_make_a_version_each(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second was judged beside the version before the first, and is kept aside."""
    card, weights = checkpoint(tmp_path, opinionated())
    trained = TrainedVersion(parse_card(card), weights, VersionFigures(0.9, 0.8, None, None))
    claims = []
    for worker in ("here:1", "there:2"):
        with database.writing() as session:
            enqueue_training(session)
        held = job_queue.claim(database, worker, kind="training")
        assert held is not None
        claims.append(held)
    other = threading.Thread(target=_store, args=(database, claims[1], 0, trained))

    def before_the_first_has_ended(session: Session) -> None:
        if other.ident is None:
            other.start()
            other.join(0.5)  # it waits for the first, or has failed

    monkeypatch.setattr(version_training, "prune_versions", before_the_first_has_ended)
    _store(database, claims[0], 0, trained)
    other.join()
    with database.reading() as session:
        columns = (SimulatorVersionRow.training_id, SimulatorVersionRow.promoted)
        found = session.execute(select(*columns).order_by(SimulatorVersionRow.number)).all()
    made = [(row.training_id, row.promoted) for row in found]
    assert made == [(claims[0].job_id, True), (claims[1].job_id, False)]


def test_trials_of_documents_that_are_refused_by_now_are_left_out_and_told(
    sqlite: Database, client: TestClient, small_dataset: Path
) -> None:
    """As an earlier version stored them, which checked less."""
    request = small_request(12)
    profile = request.domain.profile
    slower = replace(request.domain, profile=replace(profile, update_seconds=1e-3))
    finished(sqlite, request)
    finished(sqlite, replace(request, domain=slower))
    whole = read_measured_trials(sqlite)
    assert without_refused(whole) == (whole, "")
    refused = to_json(replace(profile, batch_size=7))
    with sqlite.writing() as session:
        session.get_one(DomainRow, request.domain.id).profile = refused
    left, told = without_refused(read_measured_trials(sqlite))
    assert {trial.domain_id for trial in left.trials} == {slower.id}
    assert "batch size 7" in told
    assert len(sources(sqlite)) == 1
    name = left.trials[0].strategy_hash
    with sqlite.writing() as session:
        session.get_one(StrategyRow, name).document = "{}"
    left, told = without_refused(read_measured_trials(sqlite))
    assert left.trials
    assert name not in {trial.strategy_hash for trial in left.trials}
    assert "Refused documents: 2" in told
    with sqlite.writing() as session:
        session.execute(update(DomainRow).values(profile=refused))
    assert train_next(sqlite, "here:1", NEVER)
    (done,) = client.get("/v1/simulators/trainings").json()["items"]
    assert (done["state"], done["version"], done["error"]) == ("finished", None, None)
    assert done["message"].startswith(f"{NOTHING_NEW}; trials left out")


def sources(database: Database) -> list[SplitTrials]:
    measured, _ = without_refused(read_measured_trials(database))
    return measured_sources(measured, source_trials(measured))


def test_only_probed_costs_leave_a_domain_what_it_is(sqlite: Database) -> None:
    """Trials at another scale are a source of their own."""
    request = small_request(12)
    curve = CollectiveCurve("all_reduce", 4, 4, (8.0, 1024.0), (3e-5, 4e-5))
    costs = (MessageCost("all_reduce", 1e-3),)
    cluster = replace(request.domain.cluster, costs=costs, curves=(curve,))
    probed = replace(request, domain=replace(request.domain, cluster=cluster))
    finished(sqlite, request)
    finished(sqlite, probed)
    (source,) = sources(sqlite)
    finished(sqlite, replace(request, byte_scale=0.25))
    two = sources(sqlite)
    assert source.trials.domain.id == probed.domain.id
    assert len(two) == 2
    assert len(two[0].trials.step_seconds) == len(source.trials.step_seconds)
    assert source.held_out.any()
    assert not source.held_out.all()


def test_a_source_has_enough_strategies_that_teach(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a tuning of shardings DDP alone does, and one strategy has no pair to be judged by."""
    request = replace(small_request(12), domain=domain_of(layered_graph()))
    chosen = candidates(request.domain, 12, SPACES["fsdp2"])
    _, store = claimed(sqlite, request)
    store.propose([proposal(each) for each in chosen])
    for each in chosen:
        key = proposal(each).key
        store.record(result(key, request, each.predicted_seconds, random.Random(1)))
    monkeypatch.setattr(measured_trials, "FEWEST_OF_A_SOURCE", 2)
    assert len(source_trials(read_measured_trials(sqlite))) == 1
    assert sources(sqlite) == []


@pytest.mark.parametrize(
    ("figures", "promoted"),
    [
        ((0.9, 0.9, None, None), True),
        ((0.89, 0.9, None, None), False),
        ((0.95, 0.9, 0.5, 0.6), False),
        ((0.95, 0.9, 0.6, 0.6), True),
        ((None, None, None, None), False),
    ],
)
def test_a_version_must_not_be_worse_on_what_none_has_seen(
    figures: tuple[float | None, float | None, float | None, float | None], promoted: bool
) -> None:
    assert VersionFigures(*figures).not_worse == promoted
