"""The fit of published rows: priors hold what rows do not tell, bounds hold everything."""

import numpy as np
import pytest

from benchmarks.published.published_clusters import cluster_at, cluster_text
from benchmarks.published.published_fit import (
    LEFT_OUT_BY,
    NOT_KNOWN,
    PRIORS,
    constants_at,
    fit,
    gigabytes_per_compute_second,
    left_out_predictions,
    values_at,
)
from benchmarks.published.published_measurements import read_rows
from tests.simulator.cost.test_fitted_constants import FITTED

ROWS = read_rows()


def test_priors_are_possible_and_values_never_leave_their_bounds() -> None:
    assert sum(prior.log_width > 0 for prior in PRIORS.values()) == 9
    constants_at({name: prior.value for name, prior in PRIORS.items()}, NOT_KNOWN)
    most = values_at(dict.fromkeys(PRIORS, 9.0))
    assert most == {name: prior.most for name, prior in PRIORS.items()}
    constants_at(most, NOT_KNOWN)


def test_constants_without_evidence_stay_at_their_prior() -> None:
    one_node = [
        row
        for row in ROWS
        if row.gpus == 4 and row.model == "ResNet-50" and row.method == "BSP-A2A"
    ]
    values = fit(one_node)
    moved = {name for name, value in values.items() if not np.isclose(value, PRIORS[name].value)}
    assert "intra_bandwidth_gbps" in moved
    assert not any(name.startswith(("10gbe", "ib100", "bytescheduler")) for name in moved)


def test_rows_are_left_out_with_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    priors = {name: prior.value for name, prior in PRIORS.items()}
    seen: list[int] = []

    def not_fitted(rows: list[object]) -> dict[str, float]:
        seen.append(len(rows))
        return priors

    monkeypatch.setattr("benchmarks.published.published_fit.fit", not_fitted)
    some = tuple(row for row in ROWS if row.method == "BSP-A2A")
    counts = {"row": [12], "gpus": [4, 4, 4], "model": [6, 6], "network": [4, 4]}
    for by in LEFT_OUT_BY:
        found = [
            int(np.isfinite(predicted).sum()) for _, predicted in left_out_predictions(some, by)
        ]
        assert found == counts[by]
    # single nodes stand under both networks' names, and are left out together
    assert sorted(seen[:12]) == [10, 10, *[11] * 8, 12, 12]


def test_the_measured_range_is_that_of_the_rows() -> None:
    ratios = {round(gigabytes_per_compute_second(row), 2) for row in ROWS}
    least, most = FITTED.calibrated.gigabytes_per_compute_second
    assert least <= min(ratios)
    assert max(ratios) <= most
    assert {row.gpus for row in ROWS} >= set(FITTED.calibrated.workers)


def test_cluster_files_say_what_they_were_written_from() -> None:
    text = cluster_text(cluster_at(FITTED, "10gbe", 2, servers=True))
    assert "name: rtx-2080-ti-2x4-10gbe-servers" in text
    assert text.count("server_only: true") == 2
