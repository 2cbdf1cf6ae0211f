"""What regions change: a region's gradients are ready together, when its backward pass ends, and
the forward pass begins when all values are there.

What the compiler fuses is not predicted: seconds of operations stay those of the profile.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.extensions.compilation.document import CompiledRegions
from autosync.extensions.compilation.verification import first_use
from autosync.population import Population
from autosync.simulator.extension_prediction import Prediction
from autosync.strategy import Strategy


class CompilationPrediction(Prediction):
    restates_domains = True

    def restated(self, domain: Domain, population: Population, index: int) -> Domain:
        """All seconds of a region's backward pass are those of the operation that it begins with,
        and all of the forward pass those of its last operation."""
        entry = population.entry(index, CompiledRegions)
        assert entry is not None
        profile = domain.profile
        forward = np.zeros(len(profile.forward_seconds))
        forward[-1] = sum(profile.forward_seconds)
        backward = np.zeros_like(forward)
        seconds = np.array(profile.backward_seconds)
        region = region_of_operations(domain, entry)
        seen: set[int] = set()
        for operation in domain.graph.backward_order:
            own = int(region[operation])
            if own not in seen:
                seen.add(own)
                backward[operation] = seconds[region == own].sum()
        restated = replace(
            profile,
            forward_seconds=tuple(forward.tolist()),
            backward_seconds=tuple(backward.tolist()),
        )
        return replace(domain, profile=restated)

    def account(self, domain: Domain, strategy: Strategy) -> list[str]:
        return [
            "Gradients of a region are ready together, when its backward pass ends. What the "
            "compiler fuses is not predicted."
        ]


PREDICTION = CompilationPrediction()


def region_of_operations(domain: Domain, entry: CompiledRegions) -> NDArray[np.int64]:
    """`(operations,)`: the number of the region of each. An operation between two belongs to the
    former."""
    begins = [0, *(first_use(domain, name) for name in entry.begins_with[1:])]
    found = np.zeros(len(domain.graph.operations), dtype=np.int64)
    for number, (first, stop) in enumerate(pairwise([*begins, len(found)])):
        found[first:stop] = number
    return found
