"""What the service exports is what `autosync simulator train` reads."""

import io
import random
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.pool import QueuePool

from autosync.api.db import Database
from autosync.api.views import reports, runtime_dataset, runtimes
from autosync.api.views.runtime_dataset import runtimes_zip
from autosync.api.views.runtimes import (
    RuntimeFilter,
    runtimes_csv,
    runtimes_jsonl,
    runtimes_parquet,
)
from autosync.errors import NotSupported
from autosync.simulator.learned.training import split_dataset
from autosync.simulator.runtime_dataset import MeasuredDomain, load_dataset
from tests.api.sample import (
    Shown,
    candidates,
    claimed,
    finished,
    proposal,
    result,
    small_request,
)

REQUEST = small_request(budget=8)


def exported(database: Database, folder: Path, only: RuntimeFilter) -> list[MeasuredDomain]:
    whole = b"".join(runtimes_zip(database, only))
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        assert archive.testzip() is None
        archive.extractall(folder)
    return load_dataset(folder)


def test_the_export_is_a_dataset(
    shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "ROWS_AT_ONCE", 5)
    monkeypatch.setattr(runtimes, "ROW_GROUP_BYTES", 1)
    (measured,) = exported(shown.database, tmp_path, RuntimeFilter(tuning=shown.first))
    with shown.database.reading() as session:
        trials = reports.trials(session, shown.first).items
    assert measured.domain == REQUEST.domain
    assert measured.failed == 1
    assert len(measured) == 7
    first = {t.strategy_id: t.step_seconds for t in trials if t.phase == "search"}
    assert sorted(measured.step_seconds) == sorted(s for s in first.values() if s)
    assert split_dataset([measured])


@pytest.mark.parametrize("export", [runtimes_csv, runtimes_jsonl, runtimes_parquet, runtimes_zip])
def test_whoever_stops_reading_holds_no_connection(
    shown: Shown,
    monkeypatch: pytest.MonkeyPatch,
    export: Callable[[Database, RuntimeFilter], Iterator[object]],
) -> None:
    monkeypatch.setattr(runtimes, "ROWS_AT_ONCE", 1)
    monkeypatch.setattr(runtimes, "ROW_GROUP_BYTES", 1)
    monkeypatch.setattr(runtime_dataset, "DOCUMENTS_AT_ONCE", 1)
    pool = shown.database.engine.pool
    assert isinstance(pool, QueuePool)
    only = RuntimeFilter(tuning=shown.first)
    held = [pool.checkedout() for _ in export(shown.database, only)]
    assert len(held) > 7
    assert set(held) == {0}


def test_times_that_do_not_compare_are_not_mixed(sqlite: Database, tmp_path: Path) -> None:
    tuning_id = finished(sqlite, REQUEST)
    finished(sqlite, replace(REQUEST, byte_scale=0.25))
    with pytest.raises(NotSupported, match="do not compare") as refused:
        runtimes_zip(sqlite, RuntimeFilter())
    assert "?tuning=ID" in refused.value.remedy
    (alone,) = exported(sqlite, tmp_path, RuntimeFilter(tuning=tuning_id))
    assert len(alone) == 7


def test_what_any_search_found_is_a_pick(sqlite: Database, tmp_path: Path) -> None:
    ddp, *others = candidates(REQUEST.domain, 4)
    kinds = ("sampled", "refined", "neighbour")
    found = [replace(each, origin=kind) for each, kind in zip(others, kinds, strict=True)]
    _, store = claimed(sqlite, REQUEST)
    store.propose([proposal(each) for each in (ddp, *found)])
    for each in (ddp, *found):
        key = proposal(each).key
        store.record(result(key, REQUEST, each.predicted_seconds, random.Random(1)))
    (measured,) = exported(sqlite, tmp_path, RuntimeFilter())
    assert measured.chosen.sum() == 3
    assert measured.predicted_seconds is not None
    predicted = sorted(measured.predicted_seconds[measured.picks])
    assert predicted == sorted(each.predicted_seconds for each in found)
