"""Predicts published rows of real GPU clusters and prints every one beside what was measured.

python -m benchmarks.published.published_rows [--fit] [--left-out row gpus model network]

--left-out: errors of rows that the constants were not fitted to: a twelfth at a time, then all of
one number of GPUs, of one model, of one network (half a minute a fit).
--fit: fit the constants anew and write them, and the cluster files that carry them (two minutes).
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from autosync.simulator.cost.fitted_constants import load_constants
from autosync.simulator.ranking_accuracy import pairs_ranked
from benchmarks.output import option_parser, print_head, print_row
from benchmarks.published.published_fit import LEFT_OUT_BY, fit_and_write, left_out_predictions
from benchmarks.published.published_measurements import (
    DEVICE,
    NETWORKS,
    PublishedRow,
    predicted_seconds,
    read_rows,
)

F64 = NDArray[np.float64]

TIE = 0.02
"""Pairs of methods that differ by less are ties, as the measurements' notes have it."""


class Comparable(Protocol):
    """A measured row; methods are compared within its cell."""

    @property
    def cell(self) -> tuple[str | int, ...]: ...
    @property
    def seconds(self) -> float: ...


def errors(rows: Sequence[Comparable], predicted: F64) -> F64:
    """Relative errors of the throughput, `(rows,)`: measured seconds over predicted, less 1."""
    return np.array([row.seconds for row in rows]) / predicted - 1.0


def ranked(rows: Sequence[Comparable], predicted: F64) -> tuple[float, int]:
    """Pairs of methods within a cell that are ranked rightly, and pairs in all, without ties."""
    right, count = 0.0, 0
    for cell in dict.fromkeys(row.cell for row in rows):
        mine = [i for i, row in enumerate(rows) if row.cell == cell]
        measured = np.array([rows[i].seconds for i in mine])
        of_cell = pairs_ranked(predicted[mine], measured, TIE)
        right, count = right + of_cell[0], count + of_cell[1]
    return right, count


def print_rows(rows: list[PublishedRow], predicted: F64) -> None:
    """Every row: throughput measured and predicted, and the error."""
    print_head("model", "network", "GPUs", "method", "measured/s", "predicted/s", "error")
    for row, seconds, error in zip(rows, predicted, errors(rows, predicted), strict=True):
        samples = row.batch_size * row.gpus
        rates = f"{samples / row.seconds:.0f}", f"{samples / seconds:.0f}"
        print_row(row.model, row.network, row.gpus, row.method, *rates, f"{error:+.1%}")


def print_summary(title: str, rows: list[PublishedRow], predicted: F64) -> None:
    """Mean absolute errors by method and network, and how well methods are ranked."""
    wrong = np.abs(errors(rows, predicted))
    right, count = ranked(rows, predicted)
    networks = [network for network in NETWORKS if any(row.network == network for row in rows)]
    print(f"\n{title}: mean absolute error {wrong.mean():.1%}, worst {wrong.max():.1%};", end=" ")
    print(f"{right:g} of {count} pairs of methods ranked rightly ({right / count:.3f})\n")
    print_head("method", *networks, "both")
    for method in (*dict.fromkeys(row.method for row in rows), "all"):
        of_method = np.array([method in (row.method, "all") for row in rows])
        means = [wrong[of_method & [row.network == net for row in rows]].mean() for net in networks]
        print_row(method, *(f"{mean:.1%}" for mean in (*means, wrong[of_method].mean())))


def misranked(rows: list[PublishedRow], predicted: F64) -> list[tuple[PublishedRow, PublishedRow]]:
    """Pairs of a cell, the measured faster first, of which the prediction says otherwise."""
    found = []
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            apart = a.cell == b.cell and np.log(b.seconds / a.seconds) > TIE
            if apart and predicted[i] >= predicted[j]:
                found.append((a, b))
    return found


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--left-out", nargs="+", default=(), choices=LEFT_OUT_BY)
    parser.add_argument("--fit", action="store_true")
    given = parser.parse_args()
    rows = read_rows()
    constants = fit_and_write(rows) if given.fit else load_constants(DEVICE)
    predicted = np.array([predicted_seconds(row, constants) for row in rows])
    print_rows(rows, predicted)
    print_summary("In sample", rows, predicted)
    print("\nNot ranked rightly (the measured faster first):")
    for a, b in misranked(rows, predicted):
        print(f"- {a.model}, {a.network}, {a.gpus} GPUs: {a.method} before {b.method}")
    for by in given.left_out:
        for title, left_out in left_out_predictions(tuple(rows), by):
            found = np.isfinite(left_out)
            chosen = [row for row, is_found in zip(rows, found, strict=True) if is_found]
            print_summary(title, chosen, left_out[found])


if __name__ == "__main__":
    main()
