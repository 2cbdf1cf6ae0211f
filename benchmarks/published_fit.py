"""Fits the constants of the published rows, leaves rows out, and writes what was fitted."""

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from autosync.bundled_data import data_folder
from autosync.documents import to_data
from autosync.simulator.cost.fitted_constants import Constants, NetworkConstants
from benchmarks.published_clusters import write_clusters
from benchmarks.published_measurements import PublishedRow, predicted_seconds

F64 = NDArray[np.float64]

START = {
    "intra_gbps": 64.0,
    "matrix_factor": 1.1,
    "node_startup_us": 100.0,
    "10gbe_gbps": 9.4,
    "10gbe_server_gbps": 9.4,
    "10gbe_startup_us": 100.0,
    "10gbe_startup_us_per_worker": 10.0,
    "ib100_gbps": 64.0,
    "ib100_startup_us": 100.0,
    "ib100_startup_us_per_worker": 10.0,
    "bytescheduler_us": 3000.0,
}
"""Where every fit starts: TCP's payload of the wire rate, half of what PCIe 3.0 x16 carries, usual
startups, and matrix products hardly slower. ByteScheduler's engine starts where it shows: below
what compute hides, a constant has no slope to follow. Engines of the others do not show: BytePS's
was fitted too, and any up to 0.9 ms a piece gave the same errors."""

ROBUST = 0.03
"""Relative errors above this count less than by their square (soft L1)."""
STEP = 2e-3
"""Relative step of the numerical derivatives: finer ones meet the jumps of merged groups."""
EVALUATIONS = 20

MEASURED = (
    "Shi et al. 2020 (arXiv 2005.13247): synchronous training of ResNet-50 and BERT-Base on 4, 8 "
    "and 16 GPUs, nodes of 4 GPUs on PCIe, PyTorch 1.4, NCCL 2.4, Horovod 0.19, BytePS 0.2"
)


def constants_at(values: dict[str, float]) -> Constants:
    """The constants that these parameters stand for."""
    return Constants(
        name="rtx-2080-ti",
        clusters=("rtx-2080-ti-*",),
        intra_bandwidth_gbps=values["intra_gbps"],
        matrix_slowdown=float(f"{max(0.0, values['matrix_factor'] - 1.0):.4g}"),
        networks={
            "node": NetworkConstants(_seconds(values["node_startup_us"])),
            "10gbe": NetworkConstants(
                _seconds(values["10gbe_startup_us"]),
                _seconds(values["10gbe_startup_us_per_worker"]),
                values["10gbe_gbps"],
                values["10gbe_server_gbps"],
            ),
            "ib100": NetworkConstants(
                _seconds(values["ib100_startup_us"]),
                _seconds(values["ib100_startup_us_per_worker"]),
                values["ib100_gbps"],
            ),
        },
        engine_seconds={"bytescheduler": _seconds(values["bytescheduler_us"])},
        measured=MEASURED,
        fitted=f"{len(START)} constants to 84 rows by robust least squares on the relative "
        "errors (benchmarks/published_rows.py --fit)",
    )


def _seconds(microseconds: float) -> float:
    return float(f"{microseconds * 1e-6:.6g}")


@dataclass(frozen=True, slots=True)
class ConstantsFit:
    """values: of START's parameters. residuals, jacobian: log errors of the rows fitted, and their
    derivatives by the logarithms of the values."""

    values: dict[str, float]
    residuals: F64
    jacobian: F64


def fit(rows: list[PublishedRow]) -> ConstantsFit:
    """Robust least squares on the logarithms of predicted over measured seconds."""
    names = list(START)  # varied by 1 + the logarithm of value over start

    def values_at(logs: F64) -> dict[str, float]:
        factors = np.exp(logs - 1.0)
        return {name: START[name] * float(f) for name, f in zip(names, factors, strict=True)}

    def residuals(logs: F64) -> F64:
        constants = constants_at(values_at(logs))
        return np.array([np.log(predicted_seconds(row, constants) / row.seconds) for row in rows])

    found = least_squares(
        residuals,
        np.ones(len(names)),  # at 1, so that the relative step of the derivatives is one
        loss="soft_l1",
        f_scale=ROBUST,
        diff_step=STEP,
        max_nfev=EVALUATIONS,
        ftol=1e-4,
        xtol=1e-3,
    )
    return ConstantsFit(values_at(found.x), found.fun, found.jac)


def rounded(values: dict[str, float]) -> dict[str, float]:
    """To three digits: more are not known."""
    return {name: float(f"{value:.3g}") for name, value in values.items()}


def fit_and_write(rows: list[PublishedRow]) -> Constants:
    """Fit all rows and write the constants and the cluster files that carry them."""
    constants = constants_at(rounded(fit(rows).values))
    path = data_folder("measurements") / f"{constants.name}.json"
    path.write_text(json.dumps(to_data(constants), indent=2) + "\n")
    write_clusters(constants)
    return constants


def left_out_predictions(rows: list[PublishedRow], by: str) -> list[tuple[str, F64]]:
    """Predicted seconds of rows by constants that never saw them, `(rows,)`; NaN: not predicted.

    by: `row` (each in turn), `gpus` (16 from 4 and 8), `model` (each from the other).
    """
    match by:
        case "row":
            return [("Each row left out in turn", one_by_one(rows))]
        case "gpus":
            largest = [row.gpus == 16 for row in rows]
            return [("16 GPUs predicted from 4 and 8", without(rows, largest))]
        case _:
            return [
                (f"{model} from the other model", without(rows, [r.model == model for r in rows]))
                for model in dict.fromkeys(row.model for row in rows)
            ]


def without(rows: list[PublishedRow], left_out: list[bool]) -> F64:
    """Those rows by a fit to the others. What the others cannot tell stays where START has it."""
    constants = constants_at(
        fit([row for row, out in zip(rows, left_out, strict=True) if not out]).values
    )
    return np.array(
        [
            predicted_seconds(row, constants) if out else np.nan
            for row, out in zip(rows, left_out, strict=True)
        ]
    )


def one_by_one(rows: list[PublishedRow]) -> F64:
    """Each row by a fit to the 83 others, to first order: one Gauss-Newton step from the fit to
    all, whose derivatives it takes. A little of START's pull keeps untold constants in place."""
    whole = fit(rows)
    weights = 1.0 / np.sqrt(1.0 + (whole.residuals / ROBUST) ** 2)
    pull = 1e-4 * np.eye(len(START))
    moved = np.empty(len(rows))
    for out in range(len(rows)):
        others = np.arange(len(rows)) != out
        slopes, weight = whole.jacobian[others], weights[others, None]
        normal = slopes.T @ (weight * slopes) + pull
        step = -np.linalg.solve(normal, slopes.T @ (weights[others] * whole.residuals[others]))
        moved[out] = whole.residuals[out] + whole.jacobian[out] @ step
    measured = np.array([row.seconds for row in rows])
    predicted: F64 = measured * np.exp(moved)
    return predicted
