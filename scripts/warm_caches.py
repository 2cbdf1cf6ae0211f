"""Compile the kernels once: the first `autosync rank` answers at once, and processes of tests that
start together do not compile them each.

numba keeps the machine code beside the sources; a small domain is enough to compile everything.
"""

import numpy as np

from autosync.api.engine.prediction_ranking import best_by_prediction
from autosync.api.engine.registry import simulator_named
from autosync.cluster.cluster_file import load_cluster
from autosync.domain import Domain
from autosync.models import bundled
from autosync.profiling import estimate_profile
from autosync.search.edits.small_edits import make_edited, parents_of
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space


def main() -> None:
    graph = bundled("resnet50")
    domain = Domain(graph, load_cluster("example-4x1"), estimate_profile(graph, "a10g"))
    for name in ("analytic", "timeline", "learned"):
        simulator = simulator_named(name)
        best_by_prediction(domain, simulator, 64, 0, lambda event: None)
    parents = parents_of(domain, Space(), sample(domain, Space(), 0, 4, 0))
    make_edited(parents, np.arange(4), np.ones(4, dtype=np.int64), 0, 0)


if __name__ == "__main__":
    main()
