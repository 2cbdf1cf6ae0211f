"""How long and how wide a tuning searches."""

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal

from pydantic import ConfigDict

from autosync.documents import STRICT
from autosync.errors import InvalidInput

Acquisition = Literal["prediction", "lower_bound", "expected_improvement"]
"""How the standard deviation that a learned simulator states counts (`ranking.promise_of`)."""

MOST_SEED = 2**53
"""Of seeds, exclusive: with a number of its own for every round a seed stays within 64 bits, and
JSON keeps it."""

SEARCHED = ("refined_share", "neighbour_share")
"""Shares of a round that searches from measured strategies have; random draws have the rest."""


@dataclass(frozen=True, slots=True)
class Settings:
    """budget: strategies tried. proposals: sampled a round. repeats: of the
    confirmation; half of them choose the winner among the finalists, half report it.

    probe: measure what messages cost before the search, unless the cluster brings its costs.
    alpha: weight of similarity against predicted time in the selection (equation 11).
    acquisition: how the standard deviation of a prediction counts.
    first_designs: hand-designed strategies of the first round, DDP among them; half of the budget
        at the most. Others must earn their trial later.
    design_share: of a later round's trials that go to such designs at the most.
    refined_share, neighbour_share: of its trials that go to what local searches from the fastest
        measured strategies come to, and to neighbours of them; the rest are random draws.
    least_gain: the search ends where its best proposal is expected to gain less over the fastest
        measured, as a share of its seconds; 0 spends the whole budget.
    """

    budget: int = 24
    proposals: int = 30_000
    repeats: int = 20
    alpha: float = 0.5
    acquisition: Acquisition = "lower_bound"
    first_designs: int = 8
    design_share: float = 0.125
    refined_share: float = 0.375
    neighbour_share: float = 0.125
    least_gain: float = 0.0
    seed: int = 0
    warmup: int = 2
    iterations: int = 5
    timeout_seconds: float = 120.0
    probe: bool = True
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        for name in ("budget", "proposals", "repeats", "iterations", "first_designs"):
            if getattr(self, name) < 1:
                raise InvalidInput(
                    f"{name} is {getattr(self, name)}; it must be at least 1.",
                    thing=name,
                    value=getattr(self, name),
                    remedy=f"Give a {name} of 1 or more.",
                )
        for name in ("seed", "warmup", "alpha"):
            if not 0 <= getattr(self, name) < inf:
                raise InvalidInput(
                    f"{name} is {getattr(self, name)}; it must be 0 or more.",
                    thing=name,
                    value=getattr(self, name),
                    remedy=f"Give a finite {name} of 0 or more.",
                )
        if self.seed >= MOST_SEED:
            raise InvalidInput(
                f"seed is {self.seed}; it must be below 2**53.",
                thing="seed",
                value=self.seed,
                remedy="Give a smaller seed.",
            )
        if not 0 < self.timeout_seconds < inf:
            raise InvalidInput(
                f"timeout_seconds is {self.timeout_seconds}; it must be above 0 and finite.",
                thing="timeout_seconds",
                value=self.timeout_seconds,
                remedy="Give the seconds that a pass of a trial may take.",
            )
        for name in ("design_share", *SEARCHED, "least_gain"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInput(
                    f"{name} is {getattr(self, name)}; it must be a share, 0 to 1.",
                    thing=name,
                    value=getattr(self, name),
                    remedy=f"Give a {name} of 0 to 1.",
                )
        if sum(getattr(self, name) for name in SEARCHED) > 1:
            raise InvalidInput(
                f"{', '.join(SEARCHED)} are more than 1 together.",
                thing=", ".join(SEARCHED),
                value=tuple(getattr(self, name) for name in SEARCHED),
                remedy="Give shares whose sum is at most 1.",
            )
