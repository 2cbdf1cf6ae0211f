"""What a tuning answers whose torch's DDP ran out of memory."""

from io import StringIO
from typing import get_args

import pytest
from rich.console import Console
from sqlalchemy import update

from autosync.api.cli import tuning_report
from autosync.api.db.database import Database
from autosync.api.db.tables import StrategySummaryRow
from autosync.api.engine.database_store import DatabaseStore
from autosync.api.http.tuning_charts import tuning_charts
from autosync.api.views import reports
from autosync.api.views.dashboard.headline import headline
from autosync.api.views.rankings import measured_ddp_seconds
from autosync.api.views.schemas import what_happened
from autosync.search.loop.confirm import conclude
from autosync.search.loop.outcome import DDP
from autosync.trials.contract import ErrorKind
from autosync.trials.request_names import FAILURES
from tests.api.sample import finished_without_ddp, small_request

REQUEST = small_request(budget=6)


@pytest.fixture
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
        console = Console(file=written, width=400)
        monkeypatch.setattr(f"autosync.api.cli.{module}.out", console)
    tuning_report.print_results(tuning, ranked, "a table")
    assert f"speed-up over {tuning.result.baseline}" in written.getvalue()
    assert "DDP ran out of memory. The answer fits" in written.getvalue()
    assert "% of the limit" in written.getvalue()
    alone = tuning.model_copy(update={"result": tuning.result.model_copy(update={"repeats": 0})})
    tuning_report.print_results(alone, ranked, "a table")
    assert "It was not confirmed" in written.getvalue()
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
    assert [words for _, words in charts["accuracy"].keys] == ["strategies"]  # no dot is DDP's


def test_every_way_of_failing_has_words() -> None:
    assert set(FAILURES) == set(get_args(ErrorKind))
    assert what_happened("crashed: rank 0: it ended: -9") == "failed"
    assert what_happened(None) == "was not tried"


def test_what_happened_to_ddp_is_told_from_its_trial(
    database: Database, tuning_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = "refused: rank 0: a table that DDP does not take"
    with database.writing() as session:
        of_ddp = StrategySummaryRow.origin == DDP
        session.execute(update(StrategySummaryRow).where(of_ddp).values(error=error))
    with database.reading() as session:
        tuning = reports.tuning(session, tuning_id)
        ranked = reports.ranked_strategies(session, tuning_id)
        charts = {chart.name: chart for chart in tuning_charts(session, tuning)[0]}
    assert tuning.result is not None
    assert tuning.result.ddp_error == error
    assert "torch's DDP was refused." in charts["confirmation"].footnote
    told = headline(tuning, None, "")
    written = StringIO()
    for module in ("tuning_report", "console"):
        monkeypatch.setattr(f"autosync.api.cli.{module}.out", Console(file=written, width=400))
    tuning_report.print_results(tuning, ranked, "a table")
    assert "torch's DDP was refused; " in told.sentence
    assert "DDP was refused. The answer runs" in written.getvalue()
    for words in (told.sentence, told.certainty, written.getvalue()):
        assert "out of memory" not in words
        assert "that fits" not in words
