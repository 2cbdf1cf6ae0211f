"""What `autosync rank` finds with fewer proposals than 30,000, and how long it takes.

    python -m benchmarks.search.rank_quality

For each domain and number of proposals: the first ten places of the ranking, by the simulator that
ranks. Figures are over those of 30,000 proposals of the same seed, in per cent: of the first place,
of the tenth, and of the mean of the ten. `apart` is by how much these three differ between seeds of
30,000 proposals, which is chance alone. Seconds are of one process whose kernels are loaded: the
designs, all proposals by the timeline, the best of them by the simulator.
"""

import time
from statistics import median

import numpy as np
from numpy.typing import NDArray

from autosync.api.engine.prediction_ranking import best_by_prediction
from autosync.api.engine.registry import simulator_named
from autosync.cluster.cluster_file import load_cluster
from autosync.domain import Domain
from autosync.models import bundled
from autosync.profiling import estimate_profile
from benchmarks.output import option_parser

DOMAINS = (
    ("resnet50", "example-4x1"),
    ("bert_base", "example-4x1"),
    ("transformer", "example-2x2"),
    ("vgg16", "aws-p3-2xlarge-x4"),
)
MANY, FEWER = 30_000, (16_384, 8_192, 4_096)
SEEDS = 3
PLACES = 10
WORDS = ("first", "tenth", "mean of ten")

F64 = NDArray[np.float64]


def main() -> None:
    option_parser(__doc__).parse_args()
    for model, cluster in DOMAINS:
        graph, machines = bundled(model), load_cluster(cluster)
        domain = Domain(graph, machines, estimate_profile(graph, machines.fastest_device_type))
        report(domain)


def report(domain: Domain) -> None:
    found: dict[int, list[F64]] = {}
    taken: dict[int, list[float]] = {}
    for seed in range(SEEDS):
        for number in (MANY, *FEWER):
            began = time.perf_counter()
            places = first_places(domain, number, seed)
            taken.setdefault(number, []).append(time.perf_counter() - began)
            found.setdefault(number, []).append(places)
    many = np.array(found[MANY])
    apart = (many.max(axis=0) / many.min(axis=0) - 1) * 100
    print(f"\n{domain.graph.name} on {domain.cluster.name}; {in_words('apart', apart)}")
    for number in found:
        over = (np.array(found[number]) / many - 1) * 100
        worst = in_words("worst seed", over.max(axis=0))
        print(
            f"  {number:6,} proposals, {median(taken[number]):.2f} s: "
            f"{in_words('mean', over.mean(axis=0))}; {worst}"
        )


def first_places(domain: Domain, proposals: int, seed: int) -> F64:
    """Predicted seconds of the first and the tenth place, and the mean of ten, `(3,)`."""
    predictor = simulator_named("learned")
    ranked = best_by_prediction(domain, predictor, proposals, seed, lambda event: None)
    seconds = [candidate.predicted_seconds for candidate in ranked[:PLACES]]
    return np.array([seconds[0], seconds[-1], np.mean(seconds)])


def in_words(name: str, per_cent: F64) -> str:
    of_each = ", ".join(
        f"{word} {value:+.2f} %" for word, value in zip(WORDS, per_cent, strict=True)
    )
    return f"{name}: {of_each}"


if __name__ == "__main__":
    main()
