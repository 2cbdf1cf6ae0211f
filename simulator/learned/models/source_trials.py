"""Trials that a model keeps, so that it can weigh them for a domain that it meets later."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.simulator.learned.features.domain_descriptor import DESCRIPTOR, importance
from autosync.simulator.learned.models.learned_model import LabelledTrials
from autosync.simulator.learned.models.left_out_trials import RobustLoss
from autosync.simulator.learned.models.model_arrays import (
    ArrayFields,
    ArrayForm,
    Arrays,
    below,
    nested,
    positive,
)

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

MOST_OF_A_SOURCE = 96
"""Trials of a domain that are kept: twice as many make a process of several domains take eight
times as long."""
OWN_WEIGHT = 3.0
"""What a trial of the domain at hand counts for in trees, beside one of the most similar other
domain. From 1 to 10 the held-out pairs of eight domains hardly differ (docs/learned.md)."""
SHARED = 0.7
"""How alike the corrections of two like domains are (a correlation). Assumed, not fitted: twelve
domains are too few to tell one value between 0 and 1 from another."""
OWN = -1
"""The number of the domain at hand among those of the trials that speak for it."""

LARGEST = 1.0
"""Log seconds to which residuals and corrections are clipped."""


@dataclass(frozen=True, slots=True)
class SourceTrials(ArrayFields):
    """T trials of S domains.

    descriptors f64[S, D]: of the domains. source i64[T]: which of them. summary f32[T, F]: what
    the models read of a strategy. residual f64[T]: log of measured over predicted seconds, less
    its domain's median. speed f64[T]: what a trial counts within its domain, 1 for the fastest.
    """

    descriptors: F64
    source: I64
    summary: NDArray[np.float32]
    residual: F64
    speed: F64

    def __len__(self) -> int:
        return len(self.residual)

    def related(self, descriptor: F64) -> "RelatedTrials":
        """As they speak for a domain: those of the most similar other domain by SHARED, and those
        of one with the same descriptor, which were stored before, as its own."""
        present, number = np.unique(self.source, return_inverse=True)
        likeness = importance(descriptor, self.descriptors[present])
        same = (self.descriptors[present] == descriptor).all(axis=1)
        domain = np.where(same, OWN, present)[number]
        share = np.where(same, np.sqrt(SHARED), np.sqrt(SHARED * likeness))[number]
        weight = likeness[number] * self.speed
        return RelatedTrials(self.summary, self.residual, self.speed, domain, share, weight)

    def as_own(self, weight: float = 1.0) -> "RelatedTrials":
        """As trials of the domain at hand. weight: of the fastest, beside those of others."""
        own = np.full(len(self), OWN, dtype=np.int64)
        share = np.full(len(self), np.sqrt(SHARED))
        return RelatedTrials(
            self.summary, self.residual, self.speed, own, share, weight * self.speed
        )

    def without(self, source: int) -> "SourceTrials":
        """All trials but those of one domain, whose descriptor stays."""
        left = self.source != source
        return replace(
            self,
            source=self.source[left],
            summary=self.summary[left],
            residual=self.residual[left],
            speed=self.speed[left],
        )

    def at_level_of(self, correction: F64) -> "SourceTrials":
        """The trials of one domain, their level such that the median miss of `correction` `(T,)`,
        which others predict for them, is 0."""
        return replace(self, residual=self.residual - np.median(self.residual - correction))

    @staticmethod
    def array_forms(columns: int, given: Arrays) -> dict[str, ArrayForm]:
        residual, descriptors = given.get("residual"), given.get("descriptors")
        trials = residual.size if residual is not None else 1
        sources = len(descriptors) if descriptors is not None and descriptors.ndim else 1

        def of_a_source(array: NDArray[Any]) -> str:
            inside = ((array >= 0) & (array < sources)).all()
            return "" if inside else "names a domain that is not there"

        return {
            "descriptors": ArrayForm((sources, len(DESCRIPTOR))),
            "source": ArrayForm((trials,), np.int64, of_a_source),
            "summary": ArrayForm((trials, columns), np.float32),
            "residual": ArrayForm((trials,)),
            "speed": ArrayForm((trials,), rule=positive),
        }


@dataclass(frozen=True, slots=True)
class RelatedTrials:
    """T trials that speak for a domain, each as far as its own domain is like that one.

    summary f32[T, F], residual f64[T], speed f64[T]: as in `SourceTrials`. domain i64[T]: of which
    domain, OWN for the one at hand. share f64[T]: of the variance of a domain's corrections, what
    it has in common with others (a square root): those of two domains correlate by its product.
    weight f64[T]: what a trial counts in trees: its domain's likeness times its speed, 1 for the
    most similar domain's fastest.
    """

    summary: NDArray[np.float32]
    residual: F64
    speed: F64
    domain: I64
    share: F64
    weight: F64

    def __len__(self) -> int:
        return len(self.residual)

    @property
    def between(self) -> F64:
        """The correlation of the trials' domains, `(T, T)`."""
        same = self.domain[:, None] == self.domain[None, :]
        return np.where(same, 1.0, self.share[:, None] * self.share[None, :])

    @property
    def to_own(self) -> F64:
        """The correlation of each trial's domain with the one at hand, `(T,)`."""
        return np.where(self.domain == OWN, 1.0, self.share * np.sqrt(SHARED))


@dataclass(frozen=True, slots=True)
class KnownTrials:
    """What a model has learned from. sources: of other domains, which count by their likeness to
    the domain at hand; own: of that domain. Either may be missing."""

    sources: SourceTrials | None = None
    own: SourceTrials | None = None

    def related(self, descriptor: F64) -> RelatedTrials:
        """As they speak for a domain, its own trials last."""
        parts = []
        if self.sources is not None:
            parts.append(self.sources.related(descriptor))
        if self.own is not None:
            parts.append(self.own.as_own(OWN_WEIGHT if parts else 1.0))
        columns = zip(
            *([getattr(part, f.name) for f in fields(part)] for part in parts), strict=True
        )
        return RelatedTrials(*map(np.concatenate, columns))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """By the names that checkpoints hold."""
        found: dict[str, NDArray[Any]] = {}
        for prefix, trials in zip(PREFIXES, (self.sources, self.own), strict=True):
            if trials is not None:
                found |= nested(prefix, trials.arrays())
        return found

    @staticmethod
    def array_forms(columns: int, given: Arrays) -> dict[str, ArrayForm]:
        """There is at least one part."""
        found: dict[str, ArrayForm] = {}
        for prefix in [p for p in PREFIXES if below(p, given)] or PREFIXES[:1]:
            found |= nested(prefix, SourceTrials.array_forms(columns, below(prefix, given)))
        return found

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "KnownTrials":
        """Without sources, the trials of the domain become the source: later ones join them."""
        sources, own = (
            SourceTrials.from_arrays(given) if (given := below(prefix, arrays)) else None
            for prefix in PREFIXES
        )
        return cls(own, None) if sources is None else cls(sources, own)


PREFIXES = ("sources.", "own.")


def kept_trials(
    sources: Sequence[LabelledTrials], most: int | None = MOST_OF_A_SOURCE
) -> SourceTrials:
    """Of each domain `most` trials at even distances, or all."""
    rows, numbers, residuals, speeds = [], [], [], []
    for number, source in enumerate(sources):
        count = len(source.step_seconds)
        kept = np.linspace(0, count - 1, min(count, most or count)).astype(np.int64)
        base = source.features.base_seconds[kept]
        residual = np.log(source.step_seconds[kept] / base)
        residual = np.clip(residual - np.median(residual), -LARGEST, LARGEST)
        rows.append(source.features.summary[kept].astype(np.float32))
        numbers.append(np.full(len(kept), number, dtype=np.int64))
        residuals.append(residual)
        speeds.append(RobustLoss(residual, base).importance)
    return SourceTrials(
        np.array([source.features.descriptor for source in sources]),
        np.concatenate(numbers),
        np.concatenate(rows),
        np.concatenate(residuals),
        np.concatenate(speeds),
    )
