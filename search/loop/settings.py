"""How long and how wide a tuning searches."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from autosync.documents import STRICT
from autosync.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Settings:
    """budget: strategies tried. proposals: sampled a round. repeats: of the confirmation.

    probe: measure what messages cost before the search, unless the cluster brings its costs.
    alpha: weight of similarity against predicted time in the selection (equation 11).
    """

    budget: int = 24
    proposals: int = 30_000
    repeats: int = 10
    alpha: float = 0.5
    seed: int = 0
    warmup: int = 2
    iterations: int = 5
    timeout_seconds: float = 120.0
    probe: bool = True
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        for name, least in (("budget", 1), ("proposals", 1), ("repeats", 1), ("iterations", 1)):
            if getattr(self, name) < least:
                raise InvalidInput(
                    f"{name} is {getattr(self, name)}; it must be at least {least}.",
                    thing=name,
                    value=getattr(self, name),
                    remedy=f"Give a {name} of {least} or more.",
                )
