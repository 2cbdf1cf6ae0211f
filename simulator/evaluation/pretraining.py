"""A simulator trained on all domains of a dataset, and how well its like ranks one it never saw."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from autosync.simulator.evaluation.compared_models import MakeModel
from autosync.simulator.evaluation.evaluation_tables import EvaluatedDomain, subjects_of
from autosync.simulator.evaluation.measured_dataset import MeasuredDomain
from autosync.simulator.evaluation.metrics import pairwise_accuracy
from autosync.simulator.learned.checkpoint import CheckpointCard, save_checkpoint
from autosync.simulator.learned.transfer import pretrained, source_of, transferred

Say = Callable[[str], None]


def train_checkpoint(
    measured: Sequence[MeasuredDomain],
    make: MakeModel,
    path: Path,
    seed: int = 0,
    say: Say = lambda text: None,
) -> CheckpointCard:
    """Write PATH.safetensors and its card, of a model that has learned from every trial.

    The card's accuracy is over domains that a model did not see: each domain is ranked by one
    that learned from the others alone, and their shares of rightly ranked pairs are averaged. A
    single domain leaves nothing to judge by: None.

    Raises:
        InvalidInput: there is no domain.
    """
    subjects = subjects_of(measured)
    accuracies = []
    for target in subjects if len(subjects) > 1 else ():
        accuracies.append(_unseen_accuracy(target, subjects, make, seed))
        say(f"{target.name}: {accuracies[-1]:.1%} of pairs, learned from the others")
    say("learning from all of them")
    known = [subject.trials for subject in subjects]
    return save_checkpoint(
        path,
        pretrained(make(seed), known),
        tuple(source_of(trials) for trials in known),
        float(np.mean(accuracies)) if accuracies else None,
        "each domain, by a model of the others" if accuracies else "none: one domain only",
    )


def _unseen_accuracy(
    target: EvaluatedDomain, subjects: Sequence[EvaluatedDomain], make: MakeModel, seed: int
) -> float:
    others = [subject.trials for subject in subjects if subject is not target]
    simulator = transferred(make(seed), others, target.measured.domain)
    predicted, _ = simulator.predict_features(target.measured.domain, target.trials.features)
    return pairwise_accuracy(predicted, target.trials.step_seconds)
