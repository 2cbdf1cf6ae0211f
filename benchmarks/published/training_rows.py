"""Predicts published training runs from the smallest run of the same model, batch and system.

python -m benchmarks.published.training_rows [--rows] [--left-out system model gpus]

The smallest run of a series says what a device computes; the others are predicted from it. Prints
errors by system, model and scale, and how many rows lie in their interval. --rows: every row as
well. --left-out: what replication adds to compute, fitted without all runs of one system, model or
number of GPUs at a time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import log1p

import numpy as np

from autosync.domain import Domain
from autosync.population import encode
from autosync.profiling import profile_from_step_seconds, update_seconds
from autosync.search.designs.known_designs import ddp
from autosync.search.designs.published_methods import horovod
from autosync.simulator.cost.replication_constants import (
    REPLICATION,
    ReplicationConstants,
    replication_slowdown,
    with_replication,
)
from autosync.simulator.sharded_strategy import fully_sharded
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy
from benchmarks.output import option_parser
from benchmarks.published.training_fit import FitRows, fitted, left_out_errors
from benchmarks.published.training_systems import (
    TrainingRow,
    cluster_of,
    graph_of,
    read_training_rows,
)

FUSED_PASSES, PLAIN_PASSES = 7 / 5, 20 / 5
"""Tensors that an update of Adam or LAMB moves, over the five of SGD with momentum: in one kernel
value, gradient and two moments are read and three of them written; TensorFlow's runs an operation
for each step of its formula."""
ROUNDS = 5
"""Of finding the compute of a run from its seconds."""


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """seconds: predicted from `base`."""

    row: TrainingRow
    base: TrainingRow
    seconds: float

    @property
    def error(self) -> float:
        """Of the throughput, relative."""
        return self.row.seconds / self.seconds - 1.0


def strategy_of(row: TrainingRow, domain: Domain) -> Strategy:
    if row.engine.startswith("fsdp"):
        ranks = row.gpus_per_node if "hybrid" in row.engine else domain.world_size
        return fully_sharded(domain, ranks)
    return horovod(domain) if "horovod" in row.engine else ddp(domain)


def domain_of(row: TrainingRow, compute_seconds: float, constants: ReplicationConstants) -> Domain:
    graph = graph_of(row.model, row.batch_size, row.sequence, row.precision, row.engine)
    cluster = cluster_of(row.system, max(row.gpus, 2))
    device = cluster.fastest_device_type
    profile = profile_from_step_seconds(graph, compute_seconds, device)
    passes = PLAIN_PASSES if row.software.startswith("TensorFlow") else FUSED_PASSES
    spent = passes * update_seconds(graph, device)
    profile = replace(profile, update_seconds=spent)
    domain = Domain(graph, cluster, profile, accumulate=row.accumulate)
    return (
        domain
        if row.gpus == 1
        else with_replication(domain, replication_slowdown(cluster, constants))
    )


def predicted_seconds(
    row: TrainingRow, compute_seconds: float, constants: ReplicationConstants = REPLICATION
) -> float:
    """Of an update of the run, where a batch's forward and backward take so long on one device."""
    domain = domain_of(row, compute_seconds, constants)
    if row.gpus == 1:
        return domain.accumulate * domain.compute_seconds + domain.profile.update_seconds
    population = encode([strategy_of(row, domain)], domain)
    return float(TimelineSimulator().predict(domain, population)[0])


def compute_of(row: TrainingRow, constants: ReplicationConstants) -> float:
    """Seconds of a batch's forward and backward on one device, such that the prediction meets the
    measured run."""
    compute = row.seconds / row.accumulate
    for _ in range(ROUNDS):
        compute *= row.seconds / predicted_seconds(row, compute, constants)
    return compute


def predictions(
    rows: Iterable[TrainingRow], constants: ReplicationConstants = REPLICATION
) -> list[PredictedRow]:
    """Of every row but the smallest of its series."""
    series: dict[tuple[object, ...], list[TrainingRow]] = {}
    for row in rows:
        series.setdefault(row.series, []).append(row)
    found = []
    for members in series.values():
        members.sort(key=lambda row: (row.gpus, row.seconds))
        base = members[0]
        others = [row for row in members if row.gpus > base.gpus]
        if not others:
            continue
        compute = compute_of(base, constants)
        found += [
            PredictedRow(row, base, predicted_seconds(row, compute, constants)) for row in others
        ]
    return found


def in_interval(each: PredictedRow) -> bool:
    """Whether the measured run lies where `autosync predict` expects nine of ten; messages that
    are hidden behind compute widen nothing, so theirs are left out."""
    return abs(log1p(each.error)) <= log1p(REPLICATION.error_share)


def _group(row: TrainingRow, by: str) -> str:
    """What is left out of a fit together with the row."""
    return {"system": row.system.split()[0], "model": row.model, "gpus": str(row.gpus)}[by]


def print_left_out(rows: list[TrainingRow], by: str) -> None:
    """Errors without what replication adds, and with it by what is left out of its fit."""
    found = predictions(rows, replace(REPLICATION, replica_share=0.0, doubling_share=0.0))
    given = FitRows(
        np.array([each.row.gpus for each in found], dtype=np.float64),
        np.array([each.base.gpus for each in found], dtype=np.float64),
        np.array([min(each.row.gpus, each.row.gpus_per_node) for each in found], dtype=np.float64),
        np.array([each.error for each in found]),
        np.array([_group(each.row, by) for each in found]),
    )
    of_each = {"without that term": given.errors, f"without each {by}": left_out_errors(given)}
    for title, errors in of_each.items():
        wrong = np.abs(errors)
        print(
            f"{title}: mean {wrong.mean():.1%}, median {np.median(wrong):.1%}, "
            f"worst decile {np.quantile(wrong, 0.9):.1%}"
        )
    print(f"shares fitted to all: {np.round(fitted(given), 4).tolist()}")


def print_errors(title: str, found: list[PredictedRow]) -> None:
    wrong = np.abs([each.error for each in found])
    signed = np.mean([each.error for each in found])
    print(
        f"{title}: {len(found)} rows, mean {wrong.mean():.1%} (signed {signed:+.1%}), worst decile "
        f"{np.quantile(wrong, 0.9):.1%}, worst {wrong.max():.1%}"
    )


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--left-out", nargs="+", default=(), choices=("system", "model", "gpus"))
    given = parser.parse_args()
    rows = read_training_rows()
    found = predictions(rows)
    if given.rows:
        for each in found:
            row = each.row
            print(
                f"{row.system:28} {row.model:24} {row.engine:10} {row.precision:8} "
                f"b{row.batch_size} s{row.sequence} {each.base.gpus}x{each.base.accumulate} -> "
                f"{row.gpus}x{row.accumulate}: {each.error:+.1%}"
            )
    for field in ("system", "model", "engine", "gpus"):
        print(f"\nby {field}")
        for value in dict.fromkeys(getattr(each.row, field) for each in found):
            print_errors(f"  {value}", [e for e in found if getattr(e.row, field) == value])
    print()
    print_errors("all", found)
    inside = np.mean([in_interval(each) for each in found])
    print(f"{inside:.0%} lie in an interval of {REPLICATION.error_share:.0%}")
    for by in given.left_out:
        print_left_out(rows, by)


if __name__ == "__main__":
    main()
