"""Published training runs as this project states them, and predictions from the smallest."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.simulator.cost.replication_constants import REPLICATION
from benchmarks.published.bucket_rows import read_bucket_rows
from benchmarks.published.training_fit import FitRows, errors_at, fitted, left_out_errors
from benchmarks.published.training_rows import compute_of, predicted_seconds, predictions
from benchmarks.published.training_systems import cluster_of, graph_of, read_training_rows

ROWS = read_training_rows()


def test_rows_are_read_with_their_batches() -> None:
    (mpt,) = [r for r in ROWS if r.model == "MPT-125m" and r.gpus == 128 and "40GB" in r.system]
    assert (mpt.batch_size, mpt.accumulate, mpt.sequence, mpt.engine) == (26, 1, 2048, "fsdp_full")
    assert mpt.seconds == pytest.approx(26 * 128 / 7746, rel=0.01)
    large = [r for r in ROWS if r.model.startswith("BERT") and r.accumulate > 64 and r.gpus == 1]
    assert large
    assert {row.batch_size for row in large} <= {2, 4, 8, 16, 22, 32, 40, 64, 128, 176, 256, 312}


def test_a_run_is_predicted_from_itself() -> None:
    row = next(r for r in ROWS if r.engine == "apex ddp" and r.gpus == 16 and "DGX-2H" in r.system)
    compute = compute_of(row, REPLICATION)
    assert predicted_seconds(row, compute) == pytest.approx(row.seconds, rel=1e-3)


def test_larger_runs_of_one_series_are_predicted_within_a_tenth() -> None:
    series = next(r.series for r in ROWS if r.model == "MPT-760m" and r.gpus == 128)
    found = predictions(row for row in ROWS if row.series == series)
    assert {each.row.gpus for each in found} == {16, 32, 64, 128}
    assert all(abs(each.error) < 0.1 for each in found)


def test_models_and_clusters_are_what_they_say() -> None:
    graph = graph_of("MPT-7b", 1, 2048, "bf16", "fsdp_full")
    assert sum(v.elements for v in graph.variables) == pytest.approx(6.65e9, rel=0.02)
    assert {v.dtype for v in graph.variables} == {"bfloat16"}
    assert cluster_of("DGX-2H", 1024).world_size == 1024
    pair, whole = (cluster_of("DGX-1 32GB", n).nodes[0].intra_bandwidth_gbps for n in (2, 8))
    assert pair is not None
    assert whole is not None
    assert pair < whole / 2


def test_a_fit_finds_what_was_added_and_judges_it_by_left_out_runs() -> None:
    gpus = np.array([2.0, 8.0, 64.0, 512.0] * 3)
    each = np.minimum(gpus, 8.0)
    share = 0.03 + 0.01 * np.log2(gpus / each)
    rows = FitRows(gpus, np.ones(12), each, share, np.repeat(["a", "b", "c"], 4))
    assert fitted(rows) == pytest.approx([0.03, 0.01], abs=1e-3)
    assert np.abs(left_out_errors(rows)).max() < 0.002
    assert errors_at(rows, np.zeros(2)) == pytest.approx(rows.errors)
    odd = replace(rows, errors=np.where(rows.group == "c", 0.3, share))
    wrong = np.abs(left_out_errors(odd))
    assert wrong[odd.group == "c"].min() > 0.15


def test_buckets_of_both_sizes_are_read() -> None:
    rows = read_bucket_rows()
    assert {row.bucket_mib for row in rows} == {0, 1, 25}
    assert {row.gpus for row in rows} == {1, 2, 4, 8, 16}
