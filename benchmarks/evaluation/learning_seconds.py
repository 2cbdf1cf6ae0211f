"""What a tuning spends on learning; prints seconds and nothing is measured by trials.

    python -m benchmarks.evaluation.learning_seconds

Measured strategies of ResNet-50 come in the rounds of a tuning. After each the bundled simulator
learns all trials so far and predicts as many proposals as the timeline passes to it.
"""

import time

import numpy as np

from autosync.bundled_data import data_folder
from autosync.search.loop.proposing import ROUND_TRIALS
from autosync.search.loop.settings import Settings
from autosync.search.loop.sources import COARSE_SIZE
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.learned.checkpoint import default_simulator
from autosync.simulator.runtime_dataset import load_dataset


def main() -> None:
    measured = load_dataset(data_folder("runtimes"))
    each, settings = next(e for e in measured if e.name == "resnet50, example-4x1"), Settings()
    proposals = sample(each.domain, Space(), 0, COARSE_SIZE, settings.seed)
    order = np.concatenate((each.designs, np.setdiff1d(np.arange(len(each)), each.designs)))
    began = time.perf_counter()
    simulator = default_simulator()
    loaded = time.perf_counter() - began
    print("| trials | learning, s | predicting, s |\n|---|---|---|")
    learning = predicting = 0.0
    for known in range(settings.first_designs, settings.budget + 1, ROUND_TRIALS):
        tried = order[:known]
        began = time.perf_counter()
        simulator.refit(each.domain, each.population.take(tried), each.label_seconds[tried])
        learned = time.perf_counter()
        simulator.predict_with_std(each.domain, proposals)
        ended = time.perf_counter()
        learning, predicting = learning + learned - began, predicting + ended - learned
        print(f"| {known} | {learned - began:.3f} | {ended - learned:.3f} |", flush=True)
    print(f"| all, and {loaded:.3f} s to load | {learning:.3f} | {predicting:.3f} |")


if __name__ == "__main__":
    main()
