"""What an export to a framework is, and how it refuses."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from autosync.documents import STRICT
from autosync.errors import NotSupported
from autosync.framework_settings.framework_names import TITLES, FrameworkName


@dataclass(frozen=True, slots=True)
class FrameworkSettings:
    """A strategy in the words of a framework.

    deviations: what the framework does otherwise than the strategy; where there are none, the same
        gradients travel in the same messages in the same order. Results are those of synchronous
        data parallelism in any case.
    settings: keyword arguments of the wrapper, or the framework's configuration file.
    environment: variables that every rank needs.
    snippet: Python that applies all this to `model` and `optimizer`.
    """

    framework: FrameworkName
    strategy_id: str
    deviations: tuple[str, ...]
    settings: dict[str, Any]
    environment: dict[str, str]
    snippet: str
    version: Literal[1] = 1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


def refused(
    framework: FrameworkName, why: str, *, thing: str = "strategy", value: object = None
) -> NotSupported:
    """why: ends no sentence."""
    return NotSupported(
        f"{TITLES[framework]} cannot run this strategy: {why}.",
        thing=thing,
        value=value,
        remedy="Apply its bundle with `autosync.distribute`, or export another strategy.",
    )
