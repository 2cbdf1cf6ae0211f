"""The verdict on a tuning, also where DDP ran out of memory, and what a reader must know."""

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from typing import get_args

import pytest
from rich.console import Console
from sqlalchemy import update

from autosync.api.cli import tuning_report
from autosync.api.cli.tuning_report import print_scales
from autosync.api.db.database import Database
from autosync.api.db.tables import StrategySummaryRow
from autosync.api.engine import job_queue
from autosync.api.engine.database_store import DatabaseStore
from autosync.api.views import reports
from autosync.api.views.dashboard.tuning_charts import tuning_charts
from autosync.api.views.rankings import measured_ddp_seconds
from autosync.api.views.tuning_schemas import Tuning, what_happened
from autosync.api.views.verdict import (
    ESTIMATED,
    FEW_CORES,
    NOT_SHAPED,
    SHARED_BY_MPS,
    SHARED_IN_TURNS,
    WAITS_PREDICTED,
    caveats_of,
    headline,
)
from autosync.search.loop.confirm import conclude
from autosync.search.loop.outcome import DDP, TuningEvent
from autosync.simulator.limit import iteration_limit
from autosync.trials.contract import ErrorKind
from autosync.trials.launchers import local_launcher
from autosync.trials.pool.process_pool import LOADED
from autosync.trials.request_names import (
    FAILURES,
    GPU_BY_MPS,
    GPU_IN_TURNS,
    PREDICTED_WAITS,
    SHORT_OF_CORES,
)
from tests.api.conftest import fresh_url
from tests.api.databases import opened
from tests.api.sample import Shown, claimed, finished, finished_without_ddp, small_request

REQUEST = small_request(budget=6)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Which no test here changes."""
    with fresh_url(request, request.param) as url, opened(url) as database:
        yield database


@pytest.fixture(scope="module")
def tuning_id(database: Database) -> str:
    return finished_without_ddp(database, REQUEST)


def test_speed_ups_are_over_what_the_confirmation_began_with(
    database: Database, tuning_id: str
) -> None:
    outcome = conclude(DatabaseStore(database, tuning_id, 1))
    with database.reading() as session:
        tuning = reports.tuning(session, tuning_id)
        (listed,) = reports.tunings(session, limit=10).items
        ranked = reports.ranked_strategies(session, tuning_id).items
        assert measured_ddp_seconds(session, tuning) is None
    assert listed == tuning
    assert tuning.result is not None
    assert tuning.result.ddp_seconds is None
    assert not tuning.result.keep_ddp
    assert tuning.result.baseline == outcome.baseline.origin != DDP
    (base,) = [row for row in ranked if row.is_baseline]
    assert base.strategy_id == outcome.baseline.strategy.id
    assert base.speedup is None
    (ddp,) = [row for row in ranked if row.is_ddp]
    assert ddp.error is not None
    assert ddp.error.startswith("out_of_memory")
    assert ddp.speedup is None
    best = next(row for row in ranked if row.strategy_id == outcome.best.strategy.id)
    if not outcome.keeps_baseline:
        assert best.speedup == outcome.speedup
    assert all(row.speedup is not None for row in ranked if not (row.is_baseline or row.is_ddp))


def test_headline_and_command_say_with_what_it_is_compared(
    database: Database, tuning_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.reading() as session:
        tuning = reports.tuning(session, tuning_id)
        ranked = reports.ranked_strategies(session, tuning_id)
    assert tuning.result is not None
    assert tuning.result.baseline is not None
    told = headline(tuning, None, "")
    assert "DDP ran out of memory; " in told.sentence
    assert tuning.result.baseline in told.sentence
    written = StringIO()
    for module in ("tuning_report", "console"):
        console = Console(file=written, width=1000)
        monkeypatch.setattr(f"autosync.api.cli.{module}.out", console)
    tuning_report.print_results(tuning, ranked, "a table")
    assert f"speed-up over {tuning.result.baseline}" in written.getvalue()
    assert f"{told.sentence}. {told.certainty}" in written.getvalue()
    assert "% of the limit" in written.getvalue()
    alone = tuning.model_copy(update={"result": tuning.result.model_copy(update={"repeats": 0})})
    tuning_report.print_results(alone, ranked, "a table")
    assert "what fits was not confirmed" in written.getvalue()
    assert "0 interleaved repeats" not in written.getvalue()
    assert "1.00 (baseline)" in written.getvalue()


def test_the_confirmation_is_drawn_over_what_it_was_compared_with(
    database: Database, tuning_id: str
) -> None:
    with database.reading() as session:
        tuning = reports.tuning(session, tuning_id)
        ranked = reports.ranked_strategies(session, tuning_id).items
        charts = {chart.name: chart for chart in tuning_charts(session, tuning)[0]}
    assert tuning.result is not None
    drawn = charts["confirmation"]
    confirmed = [row for row in ranked if row.confirmed and not row.is_baseline]
    assert len(drawn.rows) == len(confirmed) > 0
    assert f"times as fast as {tuning.result.baseline}" in drawn.words
    assert "DDP" not in drawn.words
    note = f"Compared with {tuning.result.baseline}: torch's DDP ran out of memory."
    assert drawn.footnote.startswith(note)
    points = {series.name: series.points for series in charts["accuracy"].plots[0].series}
    assert points["strategies"]
    assert not points["DDP"]


def test_every_way_of_failing_has_words() -> None:
    assert set(FAILURES) == set(get_args(ErrorKind))
    assert what_happened("crashed: rank 0: it ended: -9") == "failed"
    assert what_happened(None) == "was not tried"


def test_what_happened_to_ddp_is_told_from_its_trial(database: Database, tuning_id: str) -> None:
    error = "refused: rank 0: a table that DDP does not take"
    with database.reading() as session:  # at whose end it is as before
        of_ddp = StrategySummaryRow.origin == DDP
        session.execute(update(StrategySummaryRow).where(of_ddp).values(error=error))
        tuning = reports.tuning(session, tuning_id)
        charts = {chart.name: chart for chart in tuning_charts(session, tuning)[0]}
    assert tuning.result is not None
    assert tuning.result.ddp_error == error
    assert "torch's DDP was refused." in charts["confirmation"].footnote
    told = headline(tuning, None, "")
    assert "torch's DDP was refused; " in told.sentence
    for words in (told.sentence, told.certainty):
        assert "out of memory" not in words
        assert "that fits" not in words


CAVEATS = (
    ("testbed (4 nodes)", ()),
    (local_launcher.DESCRIPTION, (NOT_SHAPED,)),
    ("local, CUDA kernels, nccl", ()),
    (f"testbed, {PREDICTED_WAITS}", (WAITS_PREDICTED,)),
    (f"testbed (4 nodes, {SHORT_OF_CORES} (1 a rank))", (FEW_CORES,)),
    (f"testbed (4 nodes), CUDA kernels, nccl, 4 ranks {GPU_BY_MPS}", (SHARED_BY_MPS,)),
    (f"testbed (4 nodes), CUDA kernels, nccl, 4 ranks {GPU_IN_TURNS}", (SHARED_IN_TURNS,)),
)
"""Where trials ran, and what is said beside their figures."""


def test_caveats_are_of_where_trials_ran(
    sqlite: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    with sqlite.reading() as session:
        tuning = reports.tuning(session, finished(sqlite, replace(REQUEST, launcher="auto")))
    assert tuning.profile_source == "estimated"
    for where, caveats in CAVEATS:
        measured = _with(tuning, ran_on=[where], profile_source="measured")
        assert caveats_of([measured]) == {tuning.id: caveats}
        estimated = _with(tuning, ran_on=[where])
        assert set(caveats_of([estimated])[tuning.id]) == {*caveats, ESTIMATED}
        print_scales(where, 1.0, 1.0)
        told = " ".join("".join(capsys.readouterr()).split())
        if caveats and caveats[0] not in (NOT_SHAPED, WAITS_PREDICTED):
            assert caveats[0].reason in told


@pytest.mark.parametrize("words", [PREDICTED_WAITS, WAITS_PREDICTED.reason])
def test_predicted_waits_are_not_those_for_activations_alone(words: str) -> None:
    """Optimizer state and values are waited for, too."""
    assert "swapped tensors" in words
    assert "activations" not in words


def test_the_local_launcher_says_it_in_these_words(capsys: pytest.CaptureFixture[str]) -> None:
    """To whoever asked for it, root or not: what would shape the links."""
    print_scales(local_launcher.DESCRIPTION, 1.0, 1.0)
    told = " ".join("".join(capsys.readouterr()).split())
    assert "--launcher testbed" in told
    assert "as root" not in told


def test_headlines_say_what_is_known(shown_sqlite: Shown) -> None:
    request = small_request()
    with shown_sqlite.database.reading() as session:
        tuning = reports.tuning(session, shown_sqlite.second)
    assert tuning.result is not None
    told = headline(
        tuning,
        None,
        "testbed (4 nodes, 1/2 of the bytes, link rates within 0.6% of the cluster file, "
        "short of cores (1 a rank), latency not emulated)",
    )
    assert f"{tuning.result.speedup:.2f} times as fast" in told.sentence
    assert f"{tuning.result.speedup_low:.2f} to {tuning.result.speedup_high:.2f}" in told.certainty
    assert f"{told.sentence} {told.certainty}".count("times as fast") == 1
    limit, best = tuning.result.limit_seconds, tuning.result.best_seconds
    assert limit == iteration_limit(request.domain, request.space).seconds
    assert f"{100 * limit / best:.0f} % of the limit of {limit * 1e3:.1f} ms" in told.certainty
    old = _with(tuning, result=tuning.result.model_copy(update={"limit_seconds": None}))
    assert "limit" not in headline(old, None, "").certainty
    assert told.where == "Measured on testbed (4 nodes), 1/2 of the bytes, 2 times slower."
    kept = _with(tuning, result=tuning.result.model_copy(update={"keep_ddp": True}))
    assert headline(kept, None, "").sentence == "chain on grid: keep torch's DDP"
    in_haste = tuning.result.model_copy(update={"keep_ddp": True, "repeats": 0})
    told = headline(_with(tuning, result=in_haste), None, "")
    assert "nothing was confirmed" in told.sentence
    assert "0 interleaved repeats" not in told.certainty
    slower = tuning.result.model_copy(update={"speedup": 0.5, "best_seconds": 0.02})
    told = headline(_with(tuning, result=slower), None, "")
    assert told.sentence.endswith("DDP is predicted not to fit into memory; the answer fits")
    assert "It takes 20.0 ms an iteration" in told.certainty
    running = _with(tuning, result=None, state="running", best_seconds=0.01)
    assert "so far 2.00 times as fast" in headline(running, 0.02, "").sentence
    assert headline(running, 0.02, "").certainty.startswith("Not confirmed")
    assert "nothing beats DDP" in headline(running, 0.009, "").sentence
    without = headline(running, None, "")
    assert without.sentence == "chain on grid is being tuned; torch's DDP was not measured"
    assert without.certainty == "Not confirmed: 10.0 ms in the fastest trial."
    stopped = headline(_with(running, state="cancelled"), None, "")
    assert stopped.sentence.endswith("was cancelled; torch's DDP was not measured")
    queued = _with(tuning, result=None, state="queued", best_seconds=None)
    assert headline(queued, None, "", 3).sentence.endswith("place 3 in the queue")


def test_a_tuning_that_measured_nothing_says_what_it_did_last(sqlite: Database) -> None:
    held, store = claimed(sqlite, small_request())
    store.report(TuningEvent("waiting", LOADED))
    job_queue.end_cancelled(sqlite, held)
    with sqlite.reading() as session:
        told = headline(reports.tuning(session, held.job_id), None, "")
    assert told.sentence.endswith("was cancelled before anything could be compared")
    assert told.certainty == f"Before its end: {LOADED}."


def _with(tuning: Tuning, **changes: object) -> Tuning:
    return tuning.model_copy(update=changes)


def test_one_repeat_is_no_plural_and_less_than_the_limit_is_not_all_of_it(
    shown_sqlite: Shown,
) -> None:
    with shown_sqlite.database.reading() as session:
        tuning = reports.tuning(session, shown_sqlite.second)
    assert tuning.result is not None
    best = tuning.result.best_seconds
    changed = {"repeats": 1, "limit_seconds": 0.996 * best}
    told = headline(_with(tuning, result=tuning.result.model_copy(update=changed)), None, "")
    assert "of 1 interleaved repeat)" in told.certainty
    assert "99.6 % of the limit" in told.certainty
