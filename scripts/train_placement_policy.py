#!/usr/bin/env python3
"""Train the placement policy that comes with AutoSync and write datasets/policies/.

Run with the project's environment: `.venv/bin/python scripts/train_placement_policy.py`. One
thread, so that the same versions of torch and NumPy write the same bytes. `--check` writes nothing,
and fails where what is stored is not what training gives.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from autosync.search.placement.policy_checkpoint import FILE, PolicyCard, save_policy, versions
from autosync.search.placement.policy_network import PlacementPolicy
from autosync.search.placement.policy_pretraining import GRAPHS, drawn_tasks, pretrain
from autosync.search.placement.policy_training import PolicySettings

PATH = Path(__file__).resolve().parent.parent / "datasets" / "policies" / FILE
DOMAINS, PASSES, ROUNDS = 28, 6, 16


def train(path: Path, domains: int, passes: int, rounds: int) -> None:
    torch.set_num_threads(1)
    settings = PolicySettings()
    torch.manual_seed(settings.seed)
    policy = PlacementPolicy()
    tasks = drawn_tasks(domains, settings)
    gains: list[float] = []
    for gains in pretrain(policy, tasks, passes, rounds, settings):
        print(f"{time.process_time():.0f} CPU seconds: {_mean(gains):.4f}", flush=True)
    evaluations = len(tasks) * passes * rounds * settings.samples
    card = PolicyCard(
        GRAPHS,
        len(tasks),
        evaluations,
        round(_mean(gains), 4),
        settings.seed,
        policy.sizes,
        versions=versions(),
    )
    save_policy(path, policy, card)


def _mean(gains: list[float]) -> float:
    """Geometric, of what fits."""
    return float(np.exp(np.mean([np.log(gain) for gain in gains if gain])))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if not given.check:
        train(PATH, DOMAINS, PASSES, ROUNDS)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILE
        train(path, DOMAINS, PASSES, ROUNDS)
        same = path.read_bytes() == PATH.read_bytes()
    print("the same" if same else "not what training gives")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
