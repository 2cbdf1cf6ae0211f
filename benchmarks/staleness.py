"""Prints loss against iterations and seconds of training that applies gradients s iterations
later: an MLP on scikit-learn's digits, ranks on this machine, with and without stragglers.

python -m benchmarks.staleness [--staleness 0 1 4 16] [--ranks 2] [--iterations 400]
"""

import argparse
import os
import time
from dataclasses import replace

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import autosync
from autosync.bundle import Bundle, make_bundle
from tests.autosync.runtime.cases import Case, domain, strategy
from tests.autosync.runtime.ranks import ranks

BATCH = 32
LEARNING_RATE = 0.05
COMPUTE_SECONDS, DELAY_SECONDS, DELAYED_SHARE = 0.004, 0.04, 0.1
"""Each iteration is waited out for the first; a straggler, one iteration in ten on each rank, for
the second besides."""

CHECKED = 8
"""Losses printed of each run."""


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    return nn.Sequential(*layers)


def digits() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)


def lagging(staleness: int, world: int) -> Bundle:
    where = domain(network(), world)
    chosen = replace(strategy(Case(groups=3), where.graph, world), staleness=staleness)
    return make_bundle(chosen, where)


def train(
    rank: int, world: int, staleness: int, stragglers: bool, iterations: int
) -> list[tuple[int, float, float]]:
    """(iterations, seconds, loss on all digits), seconds without those of the loss."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    model, optimizer = autosync.distribute(
        model, optimizer, lagging(staleness, world), allow_staleness=True
    )
    images, labels = digits()
    rng = np.random.default_rng(rank)
    found = []
    spent, begun = 0.0, time.monotonic()
    for iteration in range(1, iterations + 1):
        rows = torch.from_numpy(rng.integers(0, len(images), BATCH))
        delayed = stragglers and rng.random() < DELAYED_SHARE
        time.sleep(COMPUTE_SECONDS + delayed * DELAY_SECONDS)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
        if iteration % max(1, iterations // CHECKED) == 0:
            spent += time.monotonic() - begun
            with torch.no_grad():
                loss = float(nn.functional.cross_entropy(model(images), labels))
            found.append((iteration, spent, loss))
            begun = time.monotonic()
    autosync.detach(model)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 4, 16])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=400)
    given = parser.parse_args()
    with ranks(given.ranks) as pool:
        for stragglers in (False, True):
            print("with stragglers" if stragglers else "without stragglers", flush=True)
            for staleness in given.staleness:
                found = pool.run(train, staleness, stragglers, given.iterations)[0]
                each = 1e3 * found[-1][1] / given.iterations
                losses = ", ".join(f"{i}: {loss:.4f} ({s:.2f} s)" for i, s, loss in found)
                print(f"s = {staleness}, {each:.2f} ms an iteration: {losses}", flush=True)


if __name__ == "__main__":
    main()
