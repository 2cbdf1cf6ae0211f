"""Predicts published training runs from the smallest run of the same model, batch and system.

python -m benchmarks.published.training_rows [--rows] [--series TEXT]

The smallest run of a series says what a device computes; the others are predicted from it. Prints
errors by system, model and scale, how well methods and bucket sizes are ranked, and how many rows
lie in their interval. --rows: every row as well.
"""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from autosync.domain import Domain
from autosync.population import encode
from autosync.profiling import profile_from_step_seconds, update_seconds
from autosync.search.designs.known_designs import ddp
from autosync.search.designs.published_methods import horovod
from autosync.simulator.accumulation import accumulated_seconds
from autosync.simulator.cost.applied_constants import straggler_slowdown
from autosync.simulator.sharded_strategy import fully_sharded
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy
from benchmarks.published.training_systems import (
    TrainingRow,
    cluster_of,
    graph_of,
    read_training_rows,
)

ADAM_PASSES = 7 / 5
"""Adam reads value, gradient and two moments and writes three; SGD with momentum moves five."""
ASSUMED: dict[str, float] = {}
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


def domain_of(row: TrainingRow, compute_seconds: float) -> Domain:
    graph = graph_of(row.model, row.batch_size, row.sequence, row.precision, row.engine)
    cluster = cluster_of(row.system, max(row.gpus, 2))
    if ASSUMED:
        cluster = replace(cluster, overlap_slowdown=ASSUMED["overlap"], transfer_slowdown=ASSUMED["transfer"])
        compute_seconds *= 1.0 + straggler_slowdown(row.gpus, ASSUMED["straggler"])
    device = cluster.fastest_device_type
    profile = profile_from_step_seconds(graph, compute_seconds, device)
    spent = ADAM_PASSES * update_seconds(graph, device)
    return Domain(graph, cluster, replace(profile, update_seconds=spent))


def predicted_seconds(row: TrainingRow, compute_seconds: float) -> float:
    """Of an update of the run, where a batch's forward and backward take so long on one device."""
    domain = domain_of(row, compute_seconds)
    if row.gpus == 1:
        return row.accumulate * compute_seconds + domain.profile.update_seconds
    population = encode([strategy_of(row, domain)], domain)
    seconds = TimelineSimulator().predict(domain, population)
    return float(accumulated_seconds(domain, population, seconds, row.accumulate)[0])


def compute_of(row: TrainingRow) -> float:
    """Seconds of a batch's forward and backward on one device, such that the prediction meets the
    measured run."""
    compute = row.seconds / row.accumulate
    for _ in range(ROUNDS):
        compute *= row.seconds / predicted_seconds(row, compute)
    return compute


def predictions(rows: Iterable[TrainingRow]) -> list[PredictedRow]:
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
        compute = compute_of(base)
        found += [PredictedRow(row, base, predicted_seconds(row, compute)) for row in others]
    return found


def print_errors(title: str, found: list[PredictedRow]) -> None:
    wrong = np.abs([each.error for each in found])
    signed = np.mean([each.error for each in found])
    print(
        f"{title}: {len(found)} rows, mean {wrong.mean():.1%} (signed {signed:+.1%}), worst decile "
        f"{np.quantile(wrong, 0.9):.1%}, worst {wrong.max():.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--series", default="", help="of which systems, models or engines")
    given = parser.parse_args()
    rows = [
        row for row in read_training_rows() if given.series.lower() in str(row.series).lower()
    ]
    found = predictions(rows)
    if given.rows:
        for each in found:
            row = each.row
            print(
                f"{row.system:28} {row.model:24} {row.engine:10} {row.precision:8} b{row.batch_size} "
                f"s{row.sequence} {each.base.gpus}x{each.base.accumulate} -> "
                f"{row.gpus}x{row.accumulate}: {each.error:+.1%}"
            )
    for field in ("system", "model", "engine", "gpus"):
        print(f"\nby {field}")
        for value in dict.fromkeys(getattr(each.row, field) for each in found):
            print_errors(f"  {value}", [e for e in found if getattr(e.row, field) == value])
    print()
    print_errors("all", found)


if __name__ == "__main__":
    main()
