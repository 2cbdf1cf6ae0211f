"""A Gaussian process on the summary of a strategy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.simulator.learned.features.feature_names import FEATURE_PARTS, summary_columns
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.models.gaussian_process import (
    FittedKernel,
    GaussianProcess,
    fit_kernel,
    fit_pooled_kernel,
    solved,
)
from autosync.simulator.learned.models.learned_model import FittedScores, LabelledTrials
from autosync.simulator.learned.models.model_arrays import (
    ArrayForm,
    Arrays,
    below,
    forms_if_given,
    nested,
)
from autosync.simulator.learned.models.recipe import Recipe
from autosync.simulator.learned.models.source_trials import KnownTrials, kept_trials

F64 = NDArray[np.float64]


class GaussianModel:
    """Corrects the timeline by one process over all trials it knows.

    kernel: None where nothing significant was learned.
    """

    with_shards = False
    seed = 0
    recipe = Recipe("gaussian")

    def __init__(self) -> None:
        self.known = KnownTrials()
        self.kernel: FittedKernel | None = None
        self._solved: tuple[bytes, GaussianProcess] | None = None

    def fit(self, trials: LabelledTrials) -> FittedScores:
        base, descriptor = np.log(trials.features.base_seconds), trials.features.descriptor
        own = kept_trials([trials], most=None)
        if self.known.sources is None:
            self.kernel = fit_kernel(own)
        elif self.kernel is not None:
            self._learn(KnownTrials(self.known.sources))
            others = self._process(descriptor)
            own = own.at_level_of(others.correction(trials.features.summary))
        left_out = np.ones(len(base), dtype=np.bool_)
        if self.kernel is None:
            return FittedScores(base, left_out)
        self._learn(KnownTrials(self.known.sources, own))
        residual = self.known.related(descriptor).residual
        corrections = self._process(descriptor).left_out(residual)[-len(own) :]
        return FittedScores(base + corrections, left_out)

    def pretrain(self, sources: Sequence[LabelledTrials], importance: F64) -> None:
        kept = kept_trials(sources)
        self._learn(KnownTrials(kept))
        self.kernel = fit_pooled_kernel(kept, importance)

    def scores(self, domain: Domain, features: StrategyFeatures) -> F64:
        base: F64 = np.log(features.base_seconds)
        if self.kernel is None:
            return base
        return base + self._process(features.descriptor).correction(features.summary)

    def scores_with_std(self, domain: Domain, features: StrategyFeatures) -> tuple[F64, F64]:
        base = np.log(features.base_seconds)
        if self.kernel is None:
            return base, np.zeros(len(base))
        process = self._process(features.descriptor)
        correction, std = process.correction_with_std(features.summary)
        return base + correction, std

    def arrays(self) -> dict[str, NDArray[Any]]:
        if self.kernel is None:
            return {}
        return nested("kernel.", self.kernel.arrays()) | self.known.arrays()

    def array_forms(self, given: Arrays) -> dict[str, ArrayForm]:
        columns = len(summary_columns(FEATURE_PARTS))
        found = forms_if_given("kernel.", FittedKernel.array_forms(columns), given)
        return found | KnownTrials.array_forms(columns, given) if found else {}

    def load(self, arrays: Arrays) -> None:
        if kernel := below("kernel.", arrays):
            self.kernel = FittedKernel.from_arrays(kernel)
            self._learn(KnownTrials.from_arrays(arrays))

    def _learn(self, known: KnownTrials) -> None:
        self.known, self._solved = known, None

    def _process(self, descriptor: F64) -> GaussianProcess:
        """Solved for a domain; the last one's is kept."""
        assert self.kernel is not None
        if self._solved is None or self._solved[0] != descriptor.tobytes():
            process = solved(self.kernel, self.known.related(descriptor))
            self._solved = descriptor.tobytes(), process
        return self._solved[1]
