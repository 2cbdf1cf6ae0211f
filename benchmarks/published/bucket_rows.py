"""Predicts torch's own benchmark of DDP at buckets of 25 and 1 MB, and which of the two is faster.

python -m benchmarks.published.bucket_rows

V100 nodes with four InfiniBand ports (datasets/measurements/pytorch_ddp_v100_ib.csv); compute is
that of one GPU without DDP. The graph of ResNeXt-50 is ResNet-50's, which has as many variables of
the same sizes but for grouped kernels; ResNeXt-101 is left out.
"""

from dataclasses import dataclass

import numpy as np

from autosync.domain import Domain
from autosync.models import bundled
from autosync.population import encode
from autosync.profiling import profile_from_step_seconds
from autosync.search.designs.known_designs import all_reduce_fused
from autosync.simulator.cost.replication_constants import replication_slowdown, with_replication
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.units import MIB
from benchmarks.output import measurements, print_head, print_row
from benchmarks.published.published_rows import TIE, errors, ranked
from benchmarks.published.training_systems import cluster_of

GRAPHS = {"resnet50": "resnet50", "resnet101": "resnet101", "resnext50_32x4d": "resnet50"}
METRICS = {
    "": "iteration_p50",
    "bucket_cap_mb=25": "iteration_p50",
    "bucket_cap_mb=1": "iteration_p75",
}
"""Of buckets of 1 MB no median was printed; quartiles were within 1 ms of medians elsewhere."""


@dataclass(frozen=True, slots=True)
class BucketRow:
    """The median iteration of a model on so many GPUs; bucket_mib: 0 for one GPU without DDP."""

    model: str
    gpus: int
    bucket_mib: int
    seconds: float

    @property
    def cell(self) -> tuple[str, int]:
        return self.model, self.gpus


def read_bucket_rows() -> list[BucketRow]:
    """The medians of torch's benchmark; of one GPU, those without DDP."""
    return [
        BucketRow(
            row["model"],
            int(row["workers"]),
            int(row["option"].partition("=")[2] or 0),
            float(row["value"]) / 1e3,
        )
        for row in measurements("pytorch_ddp_v100_ib.csv")
        if row["metric"] == METRICS[row["option"]] and row["model"] in GRAPHS
        if row["method"] == "none" or int(row["workers"]) > 1
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
    print_head("model", "GPUs", "bucket, MiB", "measured ms", "predicted ms", "error")
    for row, seconds in found.items():
        measured, predicted_ms = f"{row.seconds * 1e3:.0f}", f"{seconds * 1e3:.1f}"
        error = f"{row.seconds / seconds - 1:+.1%}"
        print_row(row.model, row.gpus, row.bucket_mib, measured, predicted_ms, error)
    rows, predicted = list(found), np.array(list(found.values()))
    (right, count), wrong = ranked(rows, predicted), np.abs(errors(rows, predicted))
    print(
        f"\nmean error {wrong.mean():.1%}, worst decile {np.quantile(wrong, 0.9):.1%}; "
        f"{right:g} of {count:g} pairs beyond {TIE:.0%} ranked rightly"
    )


if __name__ == "__main__":
    main()
