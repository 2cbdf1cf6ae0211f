"""What is said beside a tuning's figures."""

from dataclasses import replace

import pytest

from autosync.api.cli.tuning_report import print_scales
from autosync.api.db import Database
from autosync.api.views import reports
from autosync.api.views.caveats import (
    ESTIMATED,
    FEW_CORES,
    NOT_SHAPED,
    SHARED_BY_MPS,
    SHARED_IN_TURNS,
    UNSHAPED,
    WAITS_PREDICTED,
    Caveat,
    caveats_of,
)
from autosync.trials.launchers import local_launcher
from autosync.trials.request_names import (
    GPU_BY_MPS,
    GPU_IN_TURNS,
    PREDICTED_WAITS,
    SHORT_OF_CORES,
)
from tests.api.sample import claimed, finished, run_search, small_request

REQUEST = small_request()


def caveats(database: Database, tuning_id: str) -> tuple[Caveat, ...]:
    with database.reading() as session:
        return caveats_of([reports.tuning(session, tuning_id)])[tuning_id]


def measured(database: Database) -> str:
    """A tuning whose compute was measured, over links that were shaped."""
    profile = replace(REQUEST.domain.profile, source="measured")
    domain = replace(REQUEST.domain, profile=profile)
    return finished(database, replace(REQUEST, domain=domain, launcher="testbed"))


def test_what_was_shaped_and_measured_needs_no_word(database: Database) -> None:
    assert caveats(database, measured(database)) == ()


def test_an_estimate_is_called_one(database: Database) -> None:
    tuning_id = finished(database, replace(REQUEST, launcher="testbed"))
    assert caveats(database, tuning_id) == (ESTIMATED,)


def test_links_count_where_trials_ran_and_not_where_they_were_asked_for(
    database: Database,
) -> None:
    held, store = claimed(database, replace(REQUEST, launcher="auto"))
    assert caveats(database, held.job_id) == (ESTIMATED,)
    run_search(store, REQUEST, launcher=local_launcher.DESCRIPTION)
    assert caveats(database, held.job_id) == (NOT_SHAPED, ESTIMATED)
    with database.reading() as session:
        assert reports.tuning(session, held.job_id).ran_on == [local_launcher.DESCRIPTION]


def test_waits_that_were_only_predicted_are_called_so(database: Database) -> None:
    held, store = claimed(database, replace(REQUEST, launcher="testbed"))
    run_search(store, REQUEST, launcher=f"testbed, {PREDICTED_WAITS}")
    assert caveats(database, held.job_id) == (ESTIMATED, WAITS_PREDICTED)


def test_a_testbed_that_was_short_of_cores_is_called_so(database: Database) -> None:
    held, store = claimed(database, replace(REQUEST, launcher="testbed"))
    run_search(store, REQUEST, launcher=f"testbed (4 nodes, {SHORT_OF_CORES} (1 a rank))")
    assert caveats(database, held.job_id) == (ESTIMATED, FEW_CORES)


@pytest.mark.parametrize(
    ("words", "caveat"), [(GPU_BY_MPS, SHARED_BY_MPS), (GPU_IN_TURNS, SHARED_IN_TURNS)]
)
def test_a_gpu_that_ranks_shared_is_called_so(
    database: Database, words: str, caveat: Caveat, capsys: pytest.CaptureFixture[str]
) -> None:
    held, store = claimed(database, replace(REQUEST, launcher="testbed"))
    where = f"testbed (4 nodes), CUDA kernels, nccl, 4 ranks {words}"
    run_search(store, REQUEST, launcher=where)
    assert caveats(database, held.job_id) == (ESTIMATED, caveat)
    print_scales(where, 1.0, 1.0)
    told = " ".join("".join(capsys.readouterr()).split())
    assert caveat.reason in told


@pytest.mark.parametrize("words", [PREDICTED_WAITS, WAITS_PREDICTED.reason])
def test_predicted_waits_are_not_those_for_activations_alone(words: str) -> None:
    """Optimizer state and values are waited for, too."""
    assert "swapped tensors" in words
    assert "activations" not in words


def test_local_links_are_known_before_the_first_trial(sqlite: Database) -> None:
    held, _ = claimed(sqlite, REQUEST)
    assert NOT_SHAPED in caveats(sqlite, held.job_id)


def test_the_local_launcher_says_it_in_these_words(capsys: pytest.CaptureFixture[str]) -> None:
    """To whoever asked for it, root or not: what would shape the links."""
    assert UNSHAPED in local_launcher.DESCRIPTION
    print_scales(local_launcher.DESCRIPTION, 1.0, 1.0)
    told = " ".join("".join(capsys.readouterr()).split())
    assert "--launcher testbed" in told
    assert "as root" not in told
