"""How true predictions are where a search looks: over the strategies that searches picked.

Of every domain with picks, by each simulator as a tuning would have it: before its first trial;
after that one, torch's DDP; after the trials of a tuning of 12, which has half of them for
hand-designed strategies; and after 12 and 20 trials of a default tuning, the hand-designed ones
that it begins with and then eight picks. Picks that teach are the timeline's. All are judged on the
same picks, those eight left out.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.simulator.learned.learned_simulators import LearnedSimulator
from autosync.simulator.learned.training import transferred
from autosync.simulator.runtime_dataset import AT_RANDOM, PICKED
from benchmarks.evaluation.evaluated_domain import PERFECT, EvaluatedDomain, MakeModel
from benchmarks.evaluation.ranking_scores import (
    assumed_truth,
    drawn_labels,
    kendall_tau,
    label_error,
)

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

DESIGNS, FIRST_PICKS = 12, 8
"""Trials of a default tuning (24) before its second and its third choice."""
FEW_DESIGNS, FEW_PICKS = 6, 6
"""Trials of a tuning of 12: hand-designed strategies, and picks."""
TOP = 8
"""Trials of a round."""
UNTAUGHT = "none"
BY_TIMELINE = f"{PICKED}timeline"


@dataclass(frozen=True, slots=True)
class PickScores:
    """Of one set of predictions over the picks of a domain.

    kendall: tau b, 0 where all are predicted alike; chosen_kendall: without those at random, which
    are easily told from the others. excess: median of measured over predicted seconds, less 1.
    top_excess: the same of the `TOP` predicted fastest. regret: how much slower the pick predicted
    fastest is than the fastest of all that was measured of the domain; top_regret: the fastest of
    the `TOP`.
    """

    kendall: float
    chosen_kendall: float
    excess: float
    top_excess: float
    regret: float
    top_regret: float


@dataclass(frozen=True, slots=True)
class PickRow:
    """simulator: who predicted. trials: of the domain that it had learned from, in words."""

    domain: str
    simulator: str
    trials: str
    scores: PickScores


@dataclass(frozen=True, slots=True)
class ChosenRow:
    """The picks of one chooser in one domain, by what it predicted when it chose them.

    excess: as in `PickScores`. regret: how much slower the fastest of them is than the fastest of
    all that was measured.
    """

    domain: str
    chooser: str
    picks: int
    excess: float
    regret: float


def judge_picks(
    predicted: F64, measured: F64, chosen: NDArray[np.bool_], fastest: float
) -> PickScores:
    """predicted, measured `(n,)` seconds; chosen `(n,)`: not at random; fastest: of everything
    measured."""
    over = measured / predicted - 1.0
    top = np.argsort(predicted, kind="stable")[:TOP]
    return PickScores(
        kendall=_tau(predicted, measured),
        chosen_kendall=_tau(predicted[chosen], measured[chosen]),
        excess=float(np.median(over)),
        top_excess=float(np.median(over[top])),
        regret=float(measured[top[0]] / fastest - 1.0),
        top_regret=float(measured[top].min() / fastest - 1.0),
    )


def _tau(predicted: F64, measured: F64) -> float:
    return float(np.nan_to_num(kendall_tau(predicted, measured)))


def mean_pick_scores(scores: Sequence[PickScores]) -> PickScores:
    return PickScores(*(float(value) for value in np.mean([astuple(s) for s in scores], axis=0)))


def judged_picks(subject: EvaluatedDomain) -> tuple[I64, dict[str, I64]]:
    """The picks that judge, and the strategies to learn from by their number and kind."""
    measured = subject.measured
    designs, seconds = measured.designs, subject.timeline_seconds
    first = sorted(designs, key=lambda i: (measured.origins[i] != "ddp", seconds[i]))[:DESIGNS]
    tried = [i for i in measured.picks if measured.origins[i] == BY_TIMELINE][:FIRST_PICKS]
    judged = np.array([i for i in measured.picks if i not in set(tried)], dtype=np.int64)
    taught = {UNTAUGHT: [], "DDP": first[:1]}
    for designs_first, picks in ((FEW_DESIGNS, FEW_PICKS), (DESIGNS, 0), (DESIGNS, FIRST_PICKS)):
        known, beside = first[:designs_first], tried[:picks]
        words = f"{len(known)} designs" + (f", {len(beside)} picks" if beside else "")
        taught[words] = [*known, *beside]
    return judged, {words: np.array(rows, dtype=np.int64) for words, rows in taught.items()}


def rank_picks(
    subject: EvaluatedDomain,
    subjects: Sequence[EvaluatedDomain],
    models: dict[str, MakeModel],
    seed: int = 0,
) -> list[PickRow]:
    """Each model from scratch, and trained on all other domains (`transferred`); the timeline; and
    the perfect predictor. Nothing for a domain without picks."""
    judged, known = judged_picks(subject)
    if len(judged) < TOP:
        return []
    measured, labels = subject.measured, subject.trials.step_seconds
    fastest = float(labels.min())
    chosen = np.array([measured.origins[i] != AT_RANDOM for i in judged])

    def row(name: str, trials: str, predicted: F64) -> PickRow:
        scores = judge_picks(predicted[judged], labels[judged], chosen, fastest)
        return PickRow(subject.name, name, trials, scores)

    rows = [row("timeline", UNTAUGHT, subject.timeline_seconds)]
    others = [each.trials for each in subject.others(subjects)]
    for name, make in models.items():
        begun = {name: LearnedSimulator(make(seed))}
        if others:
            begun[f"{name}, transferred"] = transferred(make(seed), others, measured.domain)
        for who, simulator in begun.items():
            for words, indices in known.items():
                if not len(indices) and who == name:
                    continue  # the timeline
                taught = deepcopy(simulator)
                if len(indices):
                    taught.refit_features(subject.trials.take(indices))
                rows.append(row(who, words, subject.predicted_by(taught)))
    perfect = _perfect(labels, judged, chosen, measured.noise)
    return rows if perfect is None else [*rows, PickRow(subject.name, PERFECT, UNTAUGHT, perfect)]


def chosen_rows(subject: EvaluatedDomain) -> list[ChosenRow]:
    """A row a chooser."""
    measured, labels = subject.measured, subject.trials.step_seconds
    if measured.predicted_seconds is None:
        return []
    rows = []
    for chooser in dict.fromkeys(measured.origins[i] for i in measured.picks):
        chosen = np.array([i for i in measured.picks if measured.origins[i] == chooser])
        excess = float(np.median(labels[chosen] / measured.predicted_seconds[chosen] - 1.0))
        regret = float(labels[chosen].min() / labels.min() - 1.0)
        name = chooser.removeprefix(PICKED)
        rows.append(ChosenRow(subject.name, name, len(chosen), excess, regret))
    return rows


def _perfect(
    labels: F64, judged: I64, chosen: NDArray[np.bool_], noise: float | None
) -> PickScores | None:
    """As `ranking_scores.perfect_scores`; the other strategies' labels vary, too."""
    if noise is None:
        return None
    error = label_error(noise)
    truth = labels.copy()
    truth[judged] = assumed_truth(labels[judged], error)
    return mean_pick_scores(
        [
            judge_picks(truth[judged], drawn[judged], chosen, float(drawn.min()))
            for drawn in drawn_labels(truth, error)
        ]
    )


PICK_MEASURES: dict[str, str] = {
    "kendall": "Kendall's tau over the picks",
    "chosen_kendall": "Kendall's tau over the picks, those at random left out",
    "excess": "median excess of measured over predicted",
    "top_excess": f"the same, of the {TOP} predicted fastest",
    "regret": "predicted fastest over the fastest of all measured",
    "top_regret": f"fastest of the {TOP} predicted fastest over the fastest of all measured",
}
"""By the field of `PickScores`."""


def pick_summary(rows: Sequence[PickRow]) -> str:
    """A line a simulator and its trials; means over the domains, of the excess its size, and tau
    where it is least."""
    lines = [
        "| simulator | trials | tau, mean | tau, worst domain | without random picks | "
        "size of the excess, mean | of the "
        f"{TOP} predicted fastest | regret, mean | of the best of {TOP} |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for simulator, trials in _columns(rows):
        scores = [r.scores for r in rows if (r.simulator, r.trials) == (simulator, trials)]
        mean = mean_pick_scores(scores)
        worst = min(each.kendall for each in scores)
        sizes = [
            float(np.mean([abs(getattr(each, name)) for each in scores]))
            for name in ("excess", "top_excess")
        ]
        percents = (*sizes, mean.regret, mean.top_regret)
        taus = (mean.kendall, worst, mean.chosen_kendall)
        cells = [*(f"{tau:.2f}" for tau in taus), *map(_percent, percents)]
        lines.append(f"| {simulator} | {trials} | {' | '.join(cells)} |")
    return "\n".join(lines)


def pick_table(rows: Sequence[PickRow], measure: str) -> str:
    """A line a domain, a column a simulator and its trials."""
    columns = _columns(rows)
    names = [f"{simulator}, {trials}" for simulator, trials in columns]
    cells = {(r.domain, r.simulator, r.trials): r.scores for r in rows}
    shown: Callable[[float], str] = (
        (lambda v: f"{v:.2f}") if measure.endswith("kendall") else _percent
    )
    lines = [f"| {PICK_MEASURES[measure]} | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for domain in dict.fromkeys(row.domain for row in rows):
        found = [cells.get((domain, *column)) for column in columns]
        values = ["–" if each is None else shown(getattr(each, measure)) for each in found]
        lines.append(f"| {domain} | {' | '.join(values)} |")
    return "\n".join(lines)


def chosen_table(rows: Sequence[ChosenRow]) -> str:
    """A line a domain and chooser."""
    lines = [
        "| domain | chosen by | picks | median excess over what it predicted | "
        "its fastest over the fastest of all measured |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.domain} | {r.chooser} | {r.picks} | {_percent(r.excess)} | {_percent(r.regret)} |"
        for r in rows
    ]
    return "\n".join(lines)


def _columns(rows: Sequence[PickRow]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row.simulator, row.trials) for row in rows))


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
