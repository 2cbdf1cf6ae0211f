"""Tunings one after another, each with the version that the earlier ones trained.

    python -m benchmarks.tunings_in_turn [-o docs/pictures]

Replays tunings on the bundled measurements, so that nothing is measured: what a tuning may try are
the strategies of its domain that were measured. A tuning tries 12 hand-designed strategies, DDP
first, then what its simulator predicts fastest, 24 in all, and teaches its trials to the simulator
after 12 and 20 of them. Its 24 trials then join those that the next version learns from, which
begins with nothing. Every domain comes once; the order is turned round, so that each stands at
every place, and the figures of a place are means over the domains.

Each figure is of the moment after 12 trials, on the strategies not tried: pairs ranked rightly,
those of the 60 that the timeline likes best, and by how much the best of the 8 predicted fastest is
slower than the best of all.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autosync.bundled_data import data_folder
from autosync.simulator.learned.checkpoint import LEARNED
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.learned_simulators import LearnedSimulator, gaussian_simulator
from autosync.simulator.learned.models.learned_model import LabelledTrials, make_model
from autosync.simulator.learned.models.recipe import Recipe
from autosync.simulator.learned.training import pretrained
from autosync.simulator.ranking_accuracy import pairwise_accuracy
from autosync.simulator.runtime_dataset import load_dataset, read_trials

I64 = NDArray[np.int64]
DESIGNS, FIRST_REFIT, SECOND_REFIT, BUDGET = 12, 12, 20, 24
LIKED, PICKS = 60, 8
MOST_TUNINGS = 10


@dataclass(frozen=True, slots=True)
class MeasuredPool:
    """A domain whose strategies were measured. designed bool[n]: by hand."""

    name: str
    trials: LabelledTrials
    designed: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Quality:
    """After the first trials, on what was not tried. pairs, liked: shares ranked rightly; regret:
    of the best of PICKS."""

    pairs: float
    liked: float
    regret: float


def bundled_pools(with_shards: bool = False) -> list[MeasuredPool]:
    folder = data_folder("runtimes")
    table = read_trials(folder)
    passes = table[table["pass"] > 0]
    pools = []
    for measured in load_dataset(folder):
        rows = passes[passes["domain"] == measured.domain.id].groupby("strategy_id", sort=True)
        sound = rows["step_seconds"].apply(lambda seconds: seconds.notna().all())
        origins = rows["origin"].first()[sound].to_numpy()
        features = features_of(measured.domain, measured.population, with_shards)
        trials = LabelledTrials(measured.domain, features, measured.label_seconds)
        assert len(origins) == len(measured)
        drawn = np.array([o == "sampled" or o.startswith("pick") for o in origins])
        pools.append(MeasuredPool(measured.name, trials, ~drawn))
    return pools


def tune(pool: MeasuredPool, simulator: LearnedSimulator) -> tuple[I64, Quality]:
    """What a tuning tried, i64[BUDGET], and how well it ranked the rest half-way."""
    domain, features = pool.trials.domain, pool.trials.features
    seconds = pool.trials.step_seconds

    def ranked(rows: I64) -> I64:
        predicted, _ = simulator.predict_features(domain, features.take(rows))
        return rows[np.argsort(predicted, kind="stable")]

    tried = ranked(np.flatnonzero(pool.designed))[:DESIGNS]
    quality: Quality | None = None
    for until in (FIRST_REFIT, SECOND_REFIT, BUDGET):
        rest = np.setdiff1d(np.arange(len(seconds)), tried)
        tried = np.concatenate((tried, ranked(rest)[: until - len(tried)]))
        rest = np.setdiff1d(rest, tried)
        simulator.refit_features(pool.trials.take(tried))
        if quality is None:
            quality = judged(pool, simulator, rest)
    assert quality is not None
    return tried, quality


def judged(pool: MeasuredPool, simulator: LearnedSimulator, rest: I64) -> Quality:
    features = pool.trials.features.take(rest)
    measured = pool.trials.step_seconds[rest]
    predicted, _ = simulator.predict_features(pool.trials.domain, features)
    liked = np.argsort(features.base_seconds, kind="stable")[:LIKED]
    picks = np.argsort(predicted, kind="stable")[:PICKS]
    return Quality(
        pairwise_accuracy(predicted, measured),
        pairwise_accuracy(predicted[liked], measured[liked]),
        float(measured[picks].min() / measured.min() - 1.0),
    )


def in_turn(pools: Sequence[MeasuredPool]) -> list[Quality]:
    """Of each tuning, in their order."""
    known: list[LabelledTrials] = []
    found = []
    for pool in pools:
        if known:
            simulator = pretrained(make_model(Recipe("ensemble", members=LEARNED), 0), known)
        else:
            simulator = gaussian_simulator()
        tried, quality = tune(pool, simulator)
        known.append(pool.trials.take(tried))
        found.append(quality)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, help="folder for the picture")
    given = parser.parse_args()
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)  # or told before all the work
    pools = bundled_pools()
    count = min(len(pools), MOST_TUNINGS)
    orders = [
        [pools[(start + k) % len(pools)] for k in range(count)] for start in range(len(pools))
    ]
    curves = [in_turn(order) for order in orders]
    untrained = [tune(pool, gaussian_simulator())[1] for pool in pools]
    print(f"{len(pools)} domains, {count} tunings in turn, {len(orders)} orders")
    print("| tunings seen | pairs | of the 60 liked best | best of 8 picks behind the best |")
    print("|---|---|---|---|")
    rows = [mean([curve[seen] for curve in curves]) for seen in range(count)]
    for seen, row in enumerate(rows):
        print(f"| {seen} | {row.pairs:.3f} | {row.liked:.3f} | {row.regret:.1%} |")
    row = mean(untrained)
    print(f"| untrained | {row.pairs:.3f} | {row.liked:.3f} | {row.regret:.1%} |")
    if given.out:
        draw(rows, row, given.out / "tunings_in_turn.svg")


def mean(found: Sequence[Quality]) -> Quality:
    columns = np.array([(each.pairs, each.liked, each.regret) for each in found])
    return Quality(*(float(value) for value in columns.mean(axis=0)))


def draw(rows: Sequence[Quality], untrained: Quality, file: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "tunings in turn"
    figure, axes = plt.subplots(figsize=(6.0, 3.4), layout="constrained")
    seen = np.arange(len(rows))
    for name, label in (("pairs", "all pairs"), ("liked", "of the 60 that the timeline likes")):
        (line,) = axes.plot(seen, [getattr(row, name) for row in rows], marker="o", label=label)
        axes.axhline(getattr(untrained, name), color=line.get_color(), linestyle=":")
    axes.set_xlabel("tunings seen (dotted: untrained)")
    axes.set_ylabel("ranked rightly after 12 trials")
    axes.legend()
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    main()
