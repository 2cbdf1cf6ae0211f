"""How well trained simulators rank a model that they never saw, before and after few trials.

    python -m benchmarks.unseen_models [--networks]

Each domain of the bundled measurements is ranked by simulators that learned from the domains of
other models alone, then taught what a tuning would have tried first: 12 hand-designed strategies,
or these and the 8 samples that the timeline likes best. Figures are means over the domains, of what
was not taught: pairs of all samples ranked rightly; of the 60 samples that the timeline likes best
after those 8; and by how much the best of the 8 predicted fastest is slower than the best of all.

--networks: also the LSTM, the GAT and the ensemble with both, which take minutes to train.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from autosync.simulator.learned.checkpoint import MEMBERS_OF
from autosync.simulator.learned.learned_simulators import LearnedSimulator, gaussian_simulator
from autosync.simulator.learned.models.learned_model import LabelledTrials, make_model
from autosync.simulator.learned.models.recipe import Recipe
from autosync.simulator.learned.training import pretrained
from autosync.simulator.ranking_accuracy import pairwise_accuracy
from benchmarks.tunings_in_turn import LIKED, PICKS, MeasuredPool, bundled_pools

COUNTS = (0, 12, 20)
DESIGNS, LATER = 12, 8
NETWORKS = ("lstm", "gat", "ensemble")
UNTRAINED = ("timeline", "process alone")


def taught(pool: MeasuredPool, simulator: LearnedSimulator, count: int) -> list[float]:
    """The figures after so many trials of the domain."""
    trials, base = pool.trials, pool.trials.features.base_seconds
    order = np.argsort(base, kind="stable")
    designs, samples = order[pool.designed[order]], order[~pool.designed[order]]
    known = np.concatenate((designs[:DESIGNS], samples[:LATER]))[:count]
    if count and simulator.name != "timeline":
        simulator.refit_features(trials.take(known))
    rest = np.setdiff1d(samples, known)
    liked = samples[LATER : LATER + LIKED]
    predicted, _ = simulator.predict_features(trials.domain, trials.features)
    picks = rest[np.argsort(predicted[rest], kind="stable")[:PICKS]]
    seconds = trials.step_seconds
    return [
        pairwise_accuracy(predicted[rest], seconds[rest]),
        pairwise_accuracy(predicted[liked], seconds[liked]),
        float(seconds[picks].min() / seconds[rest].min() - 1.0),
    ]


def simulator_of(name: str, others: Sequence[LabelledTrials]) -> LearnedSimulator:
    if name in UNTRAINED:
        simulator = gaussian_simulator()
        simulator.name = name
        return simulator
    members = MEMBERS_OF[name]
    recipe = Recipe("ensemble", members=members)
    return pretrained(make_model(recipe, 0), others)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", action="store_true", help="also what has networks")
    given = parser.parse_args()
    pools = bundled_pools(with_shards=given.networks)
    names = (*UNTRAINED, *(n for n in MEMBERS_OF if given.networks or n not in NETWORKS))
    figures: dict[tuple[str, int], list[list[float]]] = {}
    for pool in pools:
        model = pool.trials.domain.graph.name
        others = [p.trials for p in pools if p.trials.domain.graph.name != model]
        for name in names:
            simulator = simulator_of(name, others)
            for count in COUNTS:
                figures.setdefault((name, count), []).append(taught(pool, simulator, count))
    print("| simulator | trials | all pairs | of the 60 liked best | best of 8 picks behind |")
    print("|---|---|---|---|---|")
    for (name, count), rows in figures.items():
        pairs, liked, regret = np.mean(rows, axis=0)
        print(f"| {name} | {count} | {pairs:.3f} | {liked:.3f} | {regret:.1%} |")


if __name__ == "__main__":
    main()
