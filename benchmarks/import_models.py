"""Seconds to import each bundled model on the meta device, and to read its stored graph.

python -m benchmarks.import_models [NAME ...]
"""

import resource
import sys
import time

from autosync.models import BUNDLED, bundled, spec_of
from benchmarks.models import import_bundled


def main(names: list[str]) -> None:
    print("| model | operations | variables | import s | read s | peak memory MB |")
    print("|---|---|---|---|---|---|")
    for spec in map(spec_of, names or list(BUNDLED)):
        start = time.perf_counter()
        graph = import_bundled(spec.name)
        imported = time.perf_counter()
        bundled(spec.name)
        read = time.perf_counter()
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"| {spec.name} | {len(graph.operations)} | {len(graph.variables)} "
            f"| {imported - start:.2f} | {read - imported:.3f} | {peak_mb:.0f} |"
        )


if __name__ == "__main__":
    import torch  # noqa: F401  # so that the first model is not charged for loading torch

    main(sys.argv[1:])
