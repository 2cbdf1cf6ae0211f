"""Fits the constants of the published rows, leaves rows out, and writes what was fitted."""

import json
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from autosync.bundled_data import data_folder
from autosync.documents import to_data
from autosync.simulator.cost.applied_constants import gradient_bytes
from autosync.simulator.cost.fitted_constants import (
    PAYLOAD_SHARE,
    PHYSICAL_BOUNDS,
    CalibratedRange,
    Constants,
    NetworkConstants,
)
from benchmarks.published.published_clusters import write_clusters
from benchmarks.published.published_measurements import PublishedRow, predicted_seconds, profiled

F64 = NDArray[np.float64]

MEASURED = (
    "Shi et al. 2020 (arXiv 2005.13247): synchronous training of ResNet-50 and BERT-Base on 4, 8 "
    "and 16 GPUs, nodes of 4 GPUs on PCIe, PyTorch 1.4, NCCL 2.4, Horovod 0.19, BytePS 0.2"
)


class Prior(NamedTuple):
    """value, and log_width: one standard deviation of its logarithm; 0 where it is not fitted.
    most: its physical bound."""

    value: float
    log_width: float
    most: float
    why: str


BOUND = {name: bounds[1] for name, bounds in PHYSICAL_BOUNDS.items()}
PRIORS: dict[str, Prior] = {
    "intra_bandwidth_gbps": Prior(
        64.0,
        0.2,
        BOUND["intra_bandwidth_gbps"],
        "half of what PCIe 3.0 x16 carries: without peer-to-peer every byte passes host memory",
    ),
    "hidden_share": Prior(
        0.04,
        0.5,
        BOUND["hidden_share"],
        "launch gaps and input copies of a step, beside which copies of gradients are free",
    ),
    "transfer_slowdown": Prior(
        1.5,
        0.5,
        BOUND["transfer_slowdown"],
        "a collective's kernels wait for multiprocessors that compute holds",
    ),
    "straggler_share": Prior(
        0.006,
        0.0,
        BOUND["straggler_share"],
        "steps of one device vary by some 0.5 %; the rows say no more",
    ),
    "message_us": Prior(60.0, 0.7, 1000.0, "tens of microseconds to launch a collective"),
    "hop_us": Prior(4.0, 0.7, 500.0, "a kernel's handshake through host memory"),
    "10gbe_payload_share": Prior(0.94, 0.03, PAYLOAD_SHARE["tcp"], "TCP at an MTU of 1500"),
    "10gbe_hop_us": Prior(
        70.0,
        0.5,
        500.0,
        "TCP between two hosts: 25 to 50 us and copies through the host; on 16 such nodes an "
        "all-reduce of 1 MB takes 4.5 ms, of 0.5 MB 3.9 ms (DeAR, section II-D)",
    ),
    "10gbe_server_gbps": Prior(
        7.0, 0.3, 10.0 * PAYLOAD_SHARE["tcp"], "a few cores receive, sum and send by TCP"
    ),
    "ib100_payload_share": Prior(0.97, 0.0, PAYLOAD_SHARE["rdma"], "the slot binds first"),
    "ib100_hop_us": Prior(15.0, 0.0, 500.0, "RDMA through host memory and a proxy thread"),
    "bytescheduler_us": Prior(3000.0, 0.5, 100_000.0, "a scheduler of Python threads"),
}
"""Twelve constants, nine of them fitted."""


def constants_at(values: dict[str, float], calibrated: CalibratedRange) -> Constants:
    """The constants that these values of PRIORS stand for."""

    def seconds(name: str) -> float:
        return float(f"{values[name] * 1e-6:.6g}")

    return Constants(
        name="rtx-2080-ti",
        clusters=("rtx-2080-ti-*",),
        device="rtx-2080-ti",
        intra_bandwidth_gbps=values["intra_bandwidth_gbps"],
        hidden_share=values["hidden_share"],
        straggler_share=values["straggler_share"],
        transfer_slowdown=values["transfer_slowdown"],
        message_seconds=seconds("message_us"),
        hop_seconds=seconds("hop_us"),
        networks={
            "10gbe": NetworkConstants(
                *("tcp", 10.0, values["10gbe_payload_share"], seconds("10gbe_hop_us")),
                values["10gbe_server_gbps"],
            ),
            "ib100": NetworkConstants(
                "rdma", 100.0, values["ib100_payload_share"], seconds("ib100_hop_us")
            ),
        },
        engine_seconds={"bytescheduler": seconds("bytescheduler_us")},
        calibrated=calibrated,
        measured=MEASURED,
        fitted=f"{sum(prior.log_width > 0 for prior in PRIORS.values())} constants to 84 rows, "
        "each with a physical prior and bound (benchmarks/published/published_rows.py --fit)",
    )


ROW_ERROR = 0.03
"""Standard deviation of a row's relative error; larger ones count less than by their square."""
MODEL_ERROR = 0.02
"""Of a model's one-GPU seconds, common to all its rows. The fit estimates it, so that one model's
common error bends no constant; predictions take the stated seconds."""
STEP = 4e-3
"""Relative step of the numerical derivatives: finer ones meet the jumps of merged groups."""
EVALUATIONS = 12

LEFT_OUT_BY = ("row", "gpus", "model", "network")


def fit(rows: list[PublishedRow]) -> dict[str, float]:
    """The most likely values of PRIORS given the rows (maximum a posteriori).

    What the rows do not tell stays where its prior has it.
    """
    names = [name for name, prior in PRIORS.items() if prior.log_width > 0]
    models = sorted({row.model for row in rows})
    widths = np.array([PRIORS[name].log_width for name in names] + [MODEL_ERROR] * len(models))
    most = [np.log(PRIORS[name].most / PRIORS[name].value) for name in names]

    def residuals(shifted: F64) -> F64:
        logs = shifted - 1.0  # from 1, so that the relative step of the derivatives is one
        values = values_at(dict(zip(names, logs, strict=False)))
        constants = constants_at(values, NOT_KNOWN)
        factors = dict(zip(models, np.exp(logs[len(names) :]), strict=True))
        errors = np.array([_log_error(row, constants, factors[row.model]) for row in rows])
        return np.concatenate([_robust(errors / ROW_ERROR), logs / widths])

    found = least_squares(
        residuals,
        np.ones(len(widths)),
        bounds=(-np.inf, np.array([1.0 + each for each in most] + [np.inf] * len(models))),
        diff_step=STEP,
        max_nfev=EVALUATIONS,
        ftol=1e-3,
        xtol=2e-3,
    )
    return values_at(dict(zip(names, found.x - 1.0, strict=False)))


def values_at(logs: dict[str, float]) -> dict[str, float]:
    """PRIORS' values, moved by so much in their logarithms, within their bounds."""
    moved = {name: prior.value * np.exp(logs.get(name, 0.0)) for name, prior in PRIORS.items()}
    return {name: min(float(value), PRIORS[name].most) for name, value in moved.items()}


def rounded(values: dict[str, float]) -> dict[str, float]:
    """To three digits: more are not known."""
    return {name: float(f"{value:.3g}") for name, value in values.items()}


def _log_error(row: PublishedRow, constants: Constants, compute_factor: float) -> float:
    assumed = replace(row, seconds_alone=row.seconds_alone * compute_factor)
    return float(np.log(predicted_seconds(assumed, constants) / row.seconds))


def _robust(errors: F64) -> F64:
    """Soft L1: errors whose squares grow like the errors themselves beyond 1."""
    result: F64 = np.sign(errors) * np.sqrt(2.0 * (np.sqrt(1.0 + errors**2) - 1.0))
    return result


NOT_KNOWN = CalibratedRange((1, 1), (0.0, 0.0), 0.0)


def fit_and_write(rows: list[PublishedRow]) -> Constants:
    """Fit all rows and write the constants and the cluster files that carry them."""
    constants = constants_at(rounded(fit(rows)), calibrated_range(rows))
    path = data_folder("measurements") / f"{constants.name}.json"
    path.write_text(json.dumps(to_data(constants), indent=2) + "\n")
    write_clusters(constants)
    return constants


def calibrated_range(rows: list[PublishedRow]) -> CalibratedRange:
    """What the rows cover, and how far off predictions of left-out ones were."""
    off: list[float] = []
    for by in ("gpus", "model", "network"):
        for _, predicted in left_out_predictions(tuple(rows), by):
            measured = np.array([row.seconds for row in rows])
            found = np.isfinite(predicted)
            off += np.abs(measured[found] / predicted[found] - 1.0).tolist()
    ratios = [gigabytes_per_compute_second(row) for row in rows]
    workers = [row.gpus for row in rows]
    return CalibratedRange(
        (min(workers), max(workers)),
        (float(f"{min(ratios):.2g}"), float(f"{max(ratios):.2g}")),
        float(f"{np.quantile(off, 0.9):.2g}"),
    )


def gigabytes_per_compute_second(row: PublishedRow) -> float:
    graph, profile = profiled(row.model, row.batch_size, row.seconds_alone)
    return sum(map(gradient_bytes, graph.variables)) / 1e9 / profile.compute_seconds


@cache
def left_out_predictions(rows: tuple[PublishedRow, ...], by: str) -> list[tuple[str, F64]]:
    """Predicted seconds of rows by constants that never saw them, `(rows,)`; NaN: not predicted.

    by: `row` (a twelfth in each of twelve fits), or every number of GPUs, model or network in turn.
    Rows of 4 GPUs are one node: they belong to no network, and those of both networks' names
    measure the same and are left out together.
    """
    if by == "row":
        measurements = [(row.model, row.method, row.gpus, row.network_constants) for row in rows]
        place = {each: i for i, each in enumerate(dict.fromkeys(measurements))}
        folds = np.array([place[each] % 12 for each in measurements])
        parts = [without(rows, (folds == fold).tolist()) for fold in range(12)]
        return [("Each row by a fit without it and its fold", np.nanmax(np.array(parts), axis=0))]
    kinds = [
        {"gpus": f"{row.gpus} GPUs", "model": row.model, "network": row.network_constants}[by]
        for row in rows
    ]
    return [
        (f"{kind} from the others", without(rows, [each == kind for each in kinds]))
        for kind in dict.fromkeys(kinds)
        if kind
    ]


def without(rows: tuple[PublishedRow, ...], left_out: list[bool]) -> F64:
    """Those rows by a fit to the others."""
    values = fit([row for row, out in zip(rows, left_out, strict=True) if not out])
    constants = constants_at(values, NOT_KNOWN)
    pairs = zip(rows, left_out, strict=True)
    return np.array([predicted_seconds(row, constants) if out else np.nan for row, out in pairs])
