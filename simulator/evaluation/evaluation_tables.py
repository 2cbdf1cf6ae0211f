"""The tables of the evaluation as plain data, in the form of the thesis's 8.1, 8.3 and 8.4."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.simulator.analytic import AnalyticSimulator
from autosync.simulator.evaluation.compared_models import SEEDED, MakeModel
from autosync.simulator.evaluation.measured_domain import MeasuredDomain
from autosync.simulator.evaluation.merged_measurements import merged_by_messages
from autosync.simulator.evaluation.metrics import RankingScores, judge, mean_scores
from autosync.simulator.evaluation.perfect_predictor import perfect_scores
from autosync.simulator.evaluation.splits import split_strategies
from autosync.simulator.learned.features.feature_names import FEATURE_PARTS, FeaturePart
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.learned_simulators import LearnedSimulator
from autosync.simulator.learned.models.learned_model import LabelledTrials
from autosync.simulator.learned.models.model_factory import make_model
from autosync.simulator.learned.models.recipe import Recipe
from autosync.simulator.learned.transfer import transferred

F64 = NDArray[np.float64]

SEEDS = (0, 1, 2)
PERFECT = "perfect predictor"


@dataclass(frozen=True, slots=True)
class EvaluatedDomain:
    """A measured domain with what every table needs of it: a name of its own, its features, and
    predictions that need no training."""

    name: str
    measured: MeasuredDomain
    trials: LabelledTrials
    analytic_seconds: F64

    @property
    def timeline_seconds(self) -> F64:
        return self.trials.features.base_seconds

    def known(self, indices: NDArray[np.int64]) -> LabelledTrials:
        return self.trials.take(indices)


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """simulator: who predicted; setting: of the ablation or transfer, else empty; scores: means
    over the seeds; trials: learned from."""

    domain: str
    simulator: str
    setting: str
    trials: int
    scores: RankingScores


def subjects_of(measured: Sequence[MeasuredDomain]) -> list[EvaluatedDomain]:
    """Domains of one name (another batch or profile) are told apart by their identity. Strategies
    of one plan count once."""
    names = [each.name for each in measured]
    subjects = []
    for each in map(merged_by_messages, measured):
        name = each.name
        if names.count(name) > 1:
            name = f"{name} ({each.domain.id[:6]})"
        features = features_of(each.domain, each.population)
        trials = LabelledTrials(each.domain, features, each.label_seconds)
        analytic = AnalyticSimulator().predict(each.domain, each.population)
        subjects.append(EvaluatedDomain(name, each, trials, analytic))
    return subjects


def compare_simulators(
    subjects: Sequence[EvaluatedDomain], models: dict[str, MakeModel], seeds: Sequence[int] = SEEDS
) -> list[EvaluationRow]:
    """Table 8.1: held-out strategies of each domain, by each simulator; and by one that knows the
    true seconds (`perfect_predictor`)."""
    rows = []
    for subject in subjects:
        found: dict[str, list[RankingScores]] = {}
        for seed in seeds:
            split = split_strategies(len(subject.measured), seed)
            for name, predicted in _predictions(subject, models, seed, split.known).items():
                found.setdefault(name, []).append(_judge(subject, predicted, split.test))
            labels = subject.trials.step_seconds[split.test]
            if (perfect := perfect_scores(labels, subject.measured.noise)) is not None:
                found.setdefault(PERFECT, []).append(perfect)
        known = len(split.known)
        trials = dict.fromkeys(("analytic", "timeline", PERFECT), 0)
        rows += [
            EvaluationRow(subject.name, name, "", trials.get(name, known), mean_scores(scores))
            for name, scores in found.items()
        ]
    return rows


ABLATIONS: dict[str, tuple[FeaturePart, ...]] = {
    "full": FEATURE_PARTS,
    "raw and predefined": ("raw", "predefined"),
    "raw only": ("raw",),
    "predefined only": ("predefined",),
}


def compare_features(
    subjects: Sequence[EvaluatedDomain], seeds: Sequence[int] = SEEDS
) -> list[EvaluationRow]:
    """Table 8.3: an LSTM that stands alone (no timeline beneath it), by the features it reads."""
    rows = []
    for subject in subjects:
        for setting, parts in ABLATIONS.items():
            recipe = Recipe("lstm", parts, on_base=False)
            scores = []
            for seed in seeds:
                split = split_strategies(len(subject.measured), seed)
                simulator = LearnedSimulator(make_model(recipe, seed))
                simulator.refit_features(subject.known(split.known))
                scores.append(_judge(subject, predicted_by(simulator, subject), split.test))
            rows.append(
                EvaluationRow(subject.name, "lstm", setting, len(split.known), mean_scores(scores))
            )
    return rows


def transfers_to(
    target: EvaluatedDomain,
    subjects: Sequence[EvaluatedDomain],
    models: dict[str, MakeModel],
    seeds: Sequence[int] = SEEDS,
) -> list[EvaluationRow]:
    """Table 8.4: one domain ranked without a trial of it, by simulators that learned from the
    domains of other models (`leave model out`), of other clusters, and from all others. What
    knows no seed (closed forms) is fitted once."""
    everything = np.arange(len(target.measured))
    baseline = _judge(target, target.timeline_seconds, everything)
    rows = [EvaluationRow(target.name, "timeline", "no trials", 0, baseline)]
    perfect = perfect_scores(target.trials.step_seconds, target.measured.noise)
    if perfect is not None:
        rows.append(EvaluationRow(target.name, PERFECT, "no trials", 0, perfect))
    for setting, sources in transfer_sources(target, subjects).items():
        known = [source.trials for source in sources]
        for name, make in models.items():
            scores = []
            for seed in seeds if name in SEEDED else seeds[:1]:
                simulator = transferred(make(seed), known, target.measured.domain)
                scores.append(_judge(target, predicted_by(simulator, target), everything))
            count = sum(len(source.measured) for source in sources)
            rows.append(EvaluationRow(target.name, name, setting, count, mean_scores(scores)))
    return rows


def transfer_sources(
    target: EvaluatedDomain, subjects: Sequence[EvaluatedDomain]
) -> dict[str, list[EvaluatedDomain]]:
    """The sources of each setting that has any. A graph is told by its name, a cluster too."""
    domain = target.measured.domain
    others = [s for s in subjects if s.measured.domain.id != domain.id]
    settings = {
        "leave domain out": others,
        "leave model out": [s for s in others if s.measured.domain.graph.name != domain.graph.name],
        "leave cluster out": [
            s for s in others if s.measured.domain.cluster.name != domain.cluster.name
        ],
    }
    return {setting: sources for setting, sources in settings.items() if sources}


def learning_curve(
    subject: EvaluatedDomain,
    models: dict[str, MakeModel],
    counts: Sequence[int] = (0, 5, 10, 20, 40, 80, 150),
    seeds: Sequence[int] = SEEDS,
) -> list[EvaluationRow]:
    """Accuracy on one held-out set as the trials grow; every count's trials contain those before.

    Counts beyond what is left for training are left out.
    """
    rows = []
    for name, make in models.items():
        for count in counts:
            scores = []
            for seed in seeds:
                split = split_strategies(len(subject.measured), seed)
                if count > len(split.known):
                    break
                simulator = LearnedSimulator(make(seed))
                if count:
                    simulator.refit_features(subject.known(split.known[:count]))
                scores.append(_judge(subject, predicted_by(simulator, subject), split.test))
            if scores:
                rows.append(EvaluationRow(subject.name, name, "", count, mean_scores(scores)))
    return rows


def guided_search(
    subject: EvaluatedDomain,
    make: Callable[[], LearnedSimulator | None],
    budget: int = 100,
    round_trials: int = 8,
    seed: int = 0,
) -> F64:
    """Figure 8.3 over measured strategies: the fastest found after each trial, over the fastest
    of all, `(budget,)`.

    make: a simulator to start from (transferred, or untrained), or None to draw at random. It is
    refitted every `round_trials` with what was tried, and proposes what it predicts fastest.
    """
    simulator = make()
    seconds = subject.trials.step_seconds
    left = list(np.random.default_rng(seed).permutation(len(seconds)))
    tried: list[int] = []
    while left and len(tried) < budget:
        if simulator is not None:
            if tried:
                simulator.refit_features(subject.known(np.array(tried)))
            predicted = predicted_by(simulator, subject)
            left.sort(key=lambda k: float(predicted[k]))
        tried += left[:round_trials]
        left = left[round_trials:]
    best: F64 = np.minimum.accumulate(seconds[np.array(tried[:budget])]) / seconds.min()
    return best


def _predictions(
    subject: EvaluatedDomain, models: dict[str, MakeModel], seed: int, known: NDArray[np.int64]
) -> dict[str, F64]:
    found = {"analytic": subject.analytic_seconds, "timeline": subject.timeline_seconds}
    for name, make in models.items():
        simulator = LearnedSimulator(make(seed))
        simulator.refit_features(subject.known(known))
        found[name] = predicted_by(simulator, subject)
    return found


def predicted_by(simulator: LearnedSimulator, subject: EvaluatedDomain) -> F64:
    """Seconds of every strategy of the domain, `(n,)`."""
    return simulator.predict_features(subject.measured.domain, subject.trials.features)[0]


def _judge(subject: EvaluatedDomain, predicted: F64, indices: NDArray[np.int64]) -> RankingScores:
    labels = subject.trials.step_seconds[indices]
    return judge(predicted[indices], labels, subject.measured.noise)
