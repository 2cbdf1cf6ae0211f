"""A Gaussian process on the summary of a strategy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.simulator.learned.features.feature_names import FEATURE_PARTS, summary_columns
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.models.gaussian_process import (
    FEWEST_FOR_PROCESS,
    GaussianProcess,
    fit_gaussian,
    fit_pooled_gaussian,
)
from autosync.simulator.learned.models.learned_model import FittedScores, LabelledTrials
from autosync.simulator.learned.models.model_arrays import (
    ArrayForm,
    Arrays,
    a_share,
    below,
    forms_if_given,
    nested,
)
from autosync.simulator.learned.models.recipe import Recipe
from autosync.simulator.learned.models.robust_loss import RobustLoss

F64 = NDArray[np.float64]


class GaussianModel:
    """Corrects the timeline.

    prior: of other domains, of whose correction the `share` is taken; own: of what that leaves
    unexplained in the trials of one domain.
    """

    with_shards = False
    seed = 0
    recipe = Recipe("gaussian")

    def __init__(self) -> None:
        self.prior: GaussianProcess | None = None
        self.own: GaussianProcess | None = None
        self.share = 1.0

    def fit(self, trials: LabelledTrials) -> FittedScores:
        table = trials.features.summary
        base = np.log(trials.features.base_seconds)
        target = np.log(trials.step_seconds) - base
        if self.prior is not None and len(base) >= FEWEST_FOR_PROCESS:
            residual = target - np.median(target)
            loss = RobustLoss(residual, trials.features.base_seconds)
            known = self.prior.correction(table)
            misses = [residual - share * known for share in (0.0, 0.5, 1.0)]
            errors = [loss(miss - np.median(miss)).mean() for miss in misses]
            self.share = 0.5 * int(np.argmin(errors))
        before = self._prior_correction(table)
        self.own, left_out = fit_gaussian(table, target - before, trials.features.base_seconds)
        return FittedScores(base + before + left_out, np.ones(len(base), dtype=np.bool_))

    def pretrain(self, sources: Sequence[LabelledTrials], importance: F64) -> None:
        tables = [source.features.summary for source in sources]
        seconds = [source.features.base_seconds for source in sources]
        targets = [
            np.log(source.step_seconds / base)
            for source, base in zip(sources, seconds, strict=True)
        ]
        self.prior = fit_pooled_gaussian(tables, targets, seconds, importance)
        self.own, self.share = None, 1.0

    def scores(self, domain: Domain, features: StrategyFeatures) -> tuple[F64, F64]:
        table = features.summary
        score = np.log(features.base_seconds) + self._prior_correction(table)
        if self.own is not None:
            return score + self.own.correction(table), self.own.std(table)
        if self.prior is not None:
            return score, self.share * self.prior.std(table)
        return score, np.zeros(len(score))

    def arrays(self) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {}
        for prefix, process in (("own.", self.own), ("prior.", self.prior)):
            if process is not None:
                arrays = process.arrays() | {"share": np.array([self.share])}
                found |= nested(prefix, arrays)
        return found

    def array_forms(self, given: Arrays) -> dict[str, ArrayForm]:
        columns, found = len(summary_columns(FEATURE_PARTS)), dict[str, ArrayForm]()
        for prefix in ("own.", "prior."):
            forms = GaussianProcess.array_forms(columns, below(prefix, given))
            forms["share"] = ArrayForm((1,), rule=a_share)
            found |= forms_if_given(prefix, forms, given)
        return found

    def load(self, arrays: Arrays) -> None:
        """Without a prior, the trials' process becomes it: later ones correct it."""
        own, prior = below("own.", arrays), below("prior.", arrays)
        self.own = GaussianProcess.from_arrays(own) if own else None
        if prior:
            self.prior = GaussianProcess.from_arrays(prior)
            self.share = float(prior["share"][0])
        else:
            self.own, self.prior = None, self.own

    def _prior_correction(self, table: F64) -> F64:
        """What other domains teach of these strategies, log seconds."""
        if self.prior is None:
            return np.zeros(len(table))
        result: F64 = self.share * self.prior.correction(table)
        return result
