"""Strategies that compile to the same messages are one: measured more often, judged once."""

from dataclasses import replace

import numpy as np

from autosync.simulator.evaluation.measured_domain import F64, SAMPLED, MeasuredDomain
from autosync.simulator.message_digests import digests_of


def merged_by_messages(measured: MeasuredDomain) -> MeasuredDomain:
    """The domain with one strategy of each plan, so that no plan is on both sides of a split.

    Its seconds are the geometric means of theirs; hand-designed ones stand before sampled ones.
    """
    groups: dict[bytes, list[int]] = {}
    for index, digest in enumerate(digests_of(measured.domain, measured.population)):
        groups.setdefault(digest, []).append(index)
    if len(groups) == len(measured):
        return measured
    origins = measured.origins or (SAMPLED,) * len(measured)
    members = [sorted(group, key=lambda i: origins[i] == SAMPLED) for group in groups.values()]
    first = [group[0] for group in members]

    def mean(seconds: F64) -> F64:
        means: F64 = np.array([np.exp(np.log(seconds[group]).mean()) for group in members])
        return means

    second, predicted = measured.second_seconds, measured.predicted_seconds
    return replace(
        measured,
        population=measured.population.take(first),
        step_seconds=mean(measured.step_seconds),
        second_seconds=None if second is None else mean(second),
        best_seconds=mean(measured.label_seconds),
        origins=tuple(measured.origins[i] for i in first) if measured.origins else (),
        rounds=tuple(measured.rounds[i] for i in first) if measured.rounds else (),
        predicted_seconds=None if predicted is None else predicted[first],
    )
