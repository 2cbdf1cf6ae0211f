"""Ridge regression on the summary of a strategy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.simulator.learned.features.feature_names import (
    FEATURE_PARTS,
    FeaturePart,
    shared_columns,
    summary_columns,
)
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.models.learned_model import FittedScores, LabelledTrials
from autosync.simulator.learned.models.model_arrays import (
    ArrayForm,
    Arrays,
    below,
    forms_if_given,
    nested,
)
from autosync.simulator.learned.models.recipe import Recipe
from autosync.simulator.learned.models.ridge import Ridge, fit_pooled, fit_ridge

F64 = NDArray[np.float64]


class LinearModel:
    """Ridge on the summary of a strategy; corrects the timeline, or stands alone (`on_base`).

    prior: of other domains; ridge: the prior corrected by the trials of one.
    """

    with_shards = False
    seed = 0

    def __init__(
        self, parts: tuple[FeaturePart, ...] = FEATURE_PARTS, on_base: bool = True
    ) -> None:
        self.parts, self.on_base = parts, on_base
        self.prior: Ridge | None = None
        self.ridge: Ridge | None = None

    @property
    def recipe(self) -> Recipe:
        return Recipe("linear", self.parts, self.on_base)

    def fit(self, trials: LabelledTrials) -> FittedScores:
        base, table = self._inputs(trials.features)
        target = np.log(trials.step_seconds) - base
        self.ridge, left_out = fit_ridge(table, target, self.prior)
        return FittedScores(base + left_out, np.ones(len(base), dtype=np.bool_))

    def pretrain(self, sources: Sequence[LabelledTrials], importance: F64) -> None:
        inputs = [self._inputs(source.features) for source in sources]
        targets = [
            np.log(source.step_seconds) - base
            for source, (base, _) in zip(sources, inputs, strict=True)
        ]
        tables = [table for _, table in inputs]
        self.prior = fit_pooled(tables, targets, importance, shared_columns(self.parts))
        self.ridge = self.prior

    def scores(self, domain: Domain, features: StrategyFeatures) -> F64:
        base, table = self._inputs(features)
        return base if self.ridge is None else base + self.ridge.correction(table)

    def scores_with_std(self, domain: Domain, features: StrategyFeatures) -> tuple[F64, F64]:
        scores = self.scores(domain, features)
        if self.ridge is None:
            return scores, np.zeros(len(scores))
        return scores, self.ridge.std(self._inputs(features)[1])

    def arrays(self) -> dict[str, NDArray[Any]]:
        ridge = {} if self.ridge is None else nested("ridge.", self.ridge.arrays())
        return ridge | ({} if self.prior is None else nested("prior.", self.prior.arrays()))

    def array_forms(self, given: Arrays) -> dict[str, ArrayForm]:
        forms = Ridge.array_forms(len(summary_columns(self.parts)))
        return forms_if_given("ridge.", forms, given) | forms_if_given("prior.", forms, given)

    def load(self, arrays: Arrays) -> None:
        """Without a prior, later trials start from the ridge."""
        ridge, prior = below("ridge.", arrays), below("prior.", arrays)
        self.ridge = Ridge.from_arrays(ridge) if ridge else None
        self.prior = Ridge.from_arrays(prior) if prior else self.ridge

    def _inputs(self, features: StrategyFeatures) -> tuple[F64, F64]:
        base = np.log(features.base_seconds) if self.on_base else np.zeros(len(features))
        return base, features.summary[:, summary_columns(self.parts)]
