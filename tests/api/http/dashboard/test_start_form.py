"""What the form that starts a tuning offers, however much is stored."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from autosync.api.db import Database
from autosync.api.db.document_store import graph_row, insert_rows
from autosync.api.db.tables import GraphRow
from autosync.api.engine.simulator_store import store_simulator
from autosync.api.engine.submission import enqueue, load_request
from autosync.api.engine.worker_registry import register
from autosync.api.http.app import create_app
from autosync.api.views.dashboard.tuning_form import form_of_tuning
from autosync.environment import PREFIX_VARIABLE
from autosync.search.loop.earlier_document import EarlierTrial, EarlierTrials
from autosync.search.space import SPACES
from autosync.simulator.learned.learned_simulator import LearnedSimulator
from tests.api.checkpoints import checkpoint
from tests.api.http.forms import given_token
from tests.api.sample import candidates, small_request
from tests.domains import chain_graph

MANY = 60
"""More than a page of any list has."""


def options(text: str, name: str) -> dict[str, bool]:
    """Of the choice of this name, by value: whether it is chosen."""
    found = re.search(rf'<select name="{name}".*?</select>', text, re.DOTALL)
    shown = text if found is None else found[0]
    chosen_by_value = {}
    for tag, words in re.findall(r"<option([^>]*)>([^<]*)", shown):
        value = re.search('value="([^"]*)"', tag)
        chosen_by_value[value[1] if value else words] = tag.endswith("selected")
    return chosen_by_value


def test_every_simulator_can_be_chosen(sqlite: Database, tmp_path: Path) -> None:
    card, weights = checkpoint(tmp_path, LearnedSimulator())
    names = [f"mine-{number:03}" for number in range(MANY)]
    for name in names:
        store_simulator(sqlite, name, card, weights)
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        first = options(client.get("/").text, "simulator")
        assert first["learned"]
        assert not set(first) & set(names), "read when somebody looks"
        shown = options(client.get("/fragments/simulators?simulator=mine-059").text, "")
        assert set(shown) > {*names, "learned", "timeline"}
        assert [name for name, chosen in shown.items() if chosen] == ["mine-059"]
        removed = options(client.get("/fragments/simulators?simulator=removed").text, "")
        assert [name for name, chosen in removed.items() if chosen] == ["removed"]


def test_the_model_that_was_chosen_is_offered_however_old_it_is(sqlite: Database) -> None:
    graphs = [chain_graph(((number + 1, 4),)) for number in range(MANY)]
    for age, graph in enumerate(graphs):
        with sqlite.writing() as session:
            insert_rows(session, (graph_row(graph),))
            session.get_one(GraphRow, graph.id).created_at = 1e9 - age
    oldest = graphs[-1].id
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        assert oldest not in options(client.get("/").text, "graph")
        shown = options(client.get(f"/?graph={oldest}").text, "graph")
        assert [value for value, chosen in shown.items() if chosen] == [oldest]


def test_every_space_that_has_a_name_can_be_chosen(sqlite: Database) -> None:
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        assert chosen_space(client.get("/").text) == ""
        assert set(spaces(client.get("/").text)) == {"", *SPACES}
        for name in SPACES:
            form = {"graph": "vgg16", "cluster": "example-2x2", "space": name}
            asked = {**form, **given_token(client)}
            answer = client.post("/tunings", data=asked, follow_redirects=False)
            assert answer.status_code == 303, answer.text
            started = answer.headers["location"].rpartition("/")[2]
            assert client.get(f"/v1/tunings/{started}").json()["space"] == name
            assert chosen_space(client.get(f"/?like={started}").text) == name


def test_a_form_that_is_sent_twice_starts_one_tuning(client: TestClient) -> None:
    """As by a double click; what is changed in it, or asked for on another page, is another one."""

    def sent_as() -> str:
        found = re.search(r'name="sent_as" value="(\w+)"', client.get("/").text)
        assert found is not None
        return found[1]

    form = {"graph": "vgg16", "cluster": "example-2x2", **given_token(client)}
    first = {**form, "sent_as": sent_as()}
    changed, later = {**first, "seed": "1"}, {**form, "sent_as": sent_as()}
    shown = [
        client.post("/tunings", data=asked, follow_redirects=False).headers["location"]
        for asked in (first, first, changed, later)
    ]
    assert shown[0] == shown[1]
    assert len(set(shown)) == client.get("/v1/tunings").json()["total"] == 3


def test_a_tuning_like_one_on_the_clusters_own_hosts_runs_there(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFIX_VARIABLE, "ssh {host}")
    first = enqueue(sqlite, replace(small_request(), launcher="command"))
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        assert "command" not in options(client.get("/").text, "launcher")
        shown = options(client.get(f"/?like={first}").text, "launcher")
        register(sqlite, "idle", 60.0, 0)
        waits = client.get(f"/tunings/{first}").text
    assert [value for value, chosen in shown.items() if chosen] == ["command"]
    assert "once no other tuning runs on them" in waits, "another one may hold a worker off"


def test_what_a_tuning_began_from_is_taken_over_where_it_still_holds(sqlite: Database) -> None:
    request = small_request()
    (ddp,) = candidates(request.domain, 1)
    earlier = EarlierTrials((EarlierTrial(ddp.strategy, 0.05, ddp.origin),))
    first = enqueue(sqlite, replace(request, earlier=earlier))
    with sqlite.reading() as session:
        fields = {**form_of_tuning(session, first).fields, "like": first}
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        fields |= given_token(client)
        for name, value, began in (
            ("seed", "1", True),
            ("accumulate", "2", False),
            ("graph", "vgg16", False),
        ):
            asked = {**fields, name: value}
            answer = client.post("/tunings", data=asked, follow_redirects=False)
            assert answer.status_code == 303, answer.text
            started = answer.headers["location"].rpartition("/")[2]
            with sqlite.reading() as session:
                assert (load_request(session, started).earlier == earlier) == began, name


def test_what_was_filled_in_or_refused_is_not_folded_away(sqlite: Database) -> None:
    """Also simulators that were trained can be chosen there."""
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        empty = client.get("/").text
        asked = {"graph": "vgg16", "cluster": "example-2x2", **given_token(client)}
        answer = client.post("/tunings", data=asked, follow_redirects=False)
        like = client.get(f"/?like={answer.headers['location'].rpartition('/')[2]}").text
        refused = client.post("/tunings", data={**asked, "time_scale": "5000"})
    assert refused.status_code == 422
    assert '<details class="more" >' in empty
    for page in (like, refused.text):
        assert '<details class="more" open>' in page
        assert 'hx-get="/fragments/simulators" hx-trigger="load"' in page


def test_the_address_that_a_form_is_sent_to_leads_to_a_page(client: TestClient) -> None:
    """A browser shows what was refused there; after its session's end it asks for it again."""
    for path, page in (
        ("/tunings", "/"),
        ("/tunings/7/pause", "/tunings/7"),
        ("/clusters/calibrate", "/clusters"),
        ("/simulators/trainings", "/simulators"),
        ("/simulators/0/promote", "/simulators"),
    ):
        answer = client.get(path, headers={"accept": "text/html"}, follow_redirects=False)
        assert (answer.status_code, answer.headers.get("location")) == (303, page)
    assert client.get("/tunings").status_code == 405  # to programs


def test_only_the_operators_limits_bound_what_is_asked_for(sqlite: Database) -> None:
    """A tuning of more than a form allows, as from the command line, could not be started again."""
    with TestClient(create_app(sqlite), base_url="http://127.0.0.1") as client:
        numbers = re.findall(r'<input type="number"[^>]*>', client.get("/").text)
    assert any('name="budget"' in each for each in numbers)
    assert not [each for each in numbers if " max=" in each]


def spaces(text: str) -> dict[str, bool]:
    """By value: whether it is chosen."""
    found = re.findall(r'<input type="radio" name="space" value="(\w*)" ?(\w*)', text)
    return {value: word == "checked" for value, word in found}


def chosen_space(text: str) -> str:
    (chosen,) = [value for value, is_chosen in spaces(text).items() if is_chosen]
    return chosen
