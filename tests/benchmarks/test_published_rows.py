"""The published rows of real GPU clusters stay predicted as well as their constants can."""

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.simulator.cost.fitted_constants import load_constants
from benchmarks.published.published_measurements import PublishedRow, predicted_seconds, read_rows
from benchmarks.published.published_rows import errors, misranked, ranked

ROWS = read_rows()


@pytest.fixture(scope="module")
def predicted() -> NDArray[np.float64]:
    constants = load_constants("rtx-2080-ti")
    return np.array([predicted_seconds(row, constants) for row in ROWS])


def test_throughputs_are_at_most_3_percent_off_on_average(predicted: NDArray[np.float64]) -> None:
    assert len(ROWS) == 84
    assert np.abs(errors(ROWS, predicted)).mean() <= 0.03


def test_at_least_93_pairs_of_methods_in_100_are_ranked_rightly(
    predicted: NDArray[np.float64],
) -> None:
    right, count = ranked(ROWS, predicted)
    assert count == 203
    assert right / count >= 0.93


def test_ties_and_other_cells_are_no_pairs() -> None:
    def row(method: str, seconds: float, gpus: int = 4) -> PublishedRow:
        return PublishedRow("m", 64, "n", method, gpus, 0.1, seconds)

    rows = [row("a", 1.0), row("b", 1.01), row("c", 2.0), row("a", 0.5, gpus=8)]
    guess = np.array([3.0, 1.0, 2.0, 9.0])
    assert ranked(rows, guess) == (1.0, 2)
    assert [(a.method, b.method) for a, b in misranked(rows, guess)] == [("a", "c")]
    assert errors(rows, guess)[0] == pytest.approx(1 / 3 - 1)
