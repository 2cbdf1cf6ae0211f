"""Compile the ranking kernels once, so that the first `autosync rank` answers at once.

numba keeps the machine code beside the sources; a small domain is enough to compile everything.
"""

from autosync.api.engine.prediction_ranking import best_by_prediction
from autosync.api.engine.registry import simulator_named
from autosync.cluster_file import load_cluster
from autosync.domain import Domain
from autosync.models import bundled
from autosync.profiling import estimate_profile


def main() -> None:
    graph = bundled("resnet50")
    domain = Domain(graph, load_cluster("example-4x1"), estimate_profile(graph, "a10g"))
    for name in ("analytic", "timeline", "learned"):
        simulator = simulator_named(name)
        best_by_prediction(domain, simulator, 64, 0, lambda event: None)


if __name__ == "__main__":
    main()
