"""Predicts torch's own benchmark of DDP at buckets of 25 and 1 MB, and which of the two is faster.

python -m benchmarks.published.bucket_rows

V100 nodes with four InfiniBand ports (datasets/measurements/pytorch_ddp_v100_ib.csv); compute is
that of one GPU without DDP. The graph of ResNeXt-50 is ResNet-50's, which has as many variables of
the same sizes but for grouped kernels; ResNeXt-101 is left out.
"""

import csv
from dataclasses import dataclass

import numpy as np

from autosync.bundled_data import data_file
from autosync.domain import Domain
from autosync.models import bundled
from autosync.population import encode
from autosync.profiling import profile_from_step_seconds
from autosync.search.designs.known_designs import all_reduce_fused
from autosync.simulator.cost.replication_constants import replication_slowdown, with_replication
from autosync.simulator.ranking_accuracy import pairs_ranked
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from benchmarks.published.training_systems import cluster_of

GRAPHS = {"resnet50": "resnet50", "resnet101": "resnet101", "resnext50_32x4d": "resnet50"}
METRICS = {
    "": "iteration_p50",
    "bucket_cap_mb=25": "iteration_p50",
    "bucket_cap_mb=1": "iteration_p75",
}
"""Of buckets of 1 MB no median was printed; quartiles were within 1 ms of medians elsewhere."""
TIE = 0.02
MIB = 2**20


@dataclass(frozen=True, slots=True)
class BucketRow:
    """The median iteration of a model on so many GPUs; bucket_mib: 0 for one GPU without DDP."""

    model: str
    gpus: int
    bucket_mib: int
    seconds: float


def read_bucket_rows() -> list[BucketRow]:
    """The medians of torch's benchmark; of one GPU, those without DDP."""
    with data_file("measurements", "pytorch_ddp_v100_ib.csv").open(newline="") as file:
        records = [row for row in csv.DictReader(file) if row["metric"] == METRICS[row["option"]]]
    return [
        BucketRow(
            row["model"],
            int(row["workers"]),
            int(row["option"].partition("=")[2] or 0),
            float(row["value"]) / 1e3,
        )
        for row in records
        if row["model"] in GRAPHS and (row["method"] == "none" or int(row["workers"]) > 1)
    ]


def predicted_seconds(row: BucketRow, alone_seconds: float) -> float:
    graph = bundled(GRAPHS[row.model], 32)
    cluster = cluster_of("DGX-1 32GB", row.gpus)
    profile = profile_from_step_seconds(graph, alone_seconds, "v100")
    domain = with_replication(Domain(graph, cluster, profile), replication_slowdown(cluster))
    population = encode([all_reduce_fused(domain, row.bucket_mib * MIB)], domain)
    return float(TimelineSimulator().predict(domain, population)[0])


def main() -> None:
    rows = read_bucket_rows()
    alone = {row.model: row.seconds for row in rows if not row.bucket_mib}
    found = {row: predicted_seconds(row, alone[row.model]) for row in rows if row.bucket_mib}
    print("| model | GPUs | bucket, MiB | measured ms | predicted ms | error |")
    print("|---|---:|---:|---:|---:|---:|")
    for row, seconds in found.items():
        print(
            f"| {row.model} | {row.gpus} | {row.bucket_mib} | {row.seconds * 1e3:.0f} | "
            f"{seconds * 1e3:.1f} | {row.seconds / seconds - 1:+.1%} |"
        )
    right = count = 0.0
    for cell in dict.fromkeys((row.model, row.gpus) for row in found):
        mine = [row for row in found if (row.model, row.gpus) == cell]
        predicted = np.array([found[row] for row in mine])
        pairs = pairs_ranked(predicted, np.array([row.seconds for row in mine]), TIE)
        right, count = right + pairs[0], count + pairs[1]
    wrong = np.abs([row.seconds / seconds - 1 for row, seconds in found.items()])
    print(
        f"\nmean error {wrong.mean():.1%}, worst decile {np.quantile(wrong, 0.9):.1%}; "
        f"{right:g} of {count:g} pairs beyond {TIE:.0%} ranked rightly"
    )


if __name__ == "__main__":
    main()
