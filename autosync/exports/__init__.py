"""A strategy as settings of torch's DDP and FSDP2, and DeepSpeed, or a refusal that says why.

Pure functions of strategy and domain, a file for each framework; none of these is imported.
`settings` is their contract.
"""

from collections.abc import Callable

from autosync.domain import Domain
from autosync.exports.ddp import ddp_settings
from autosync.exports.deepspeed import deepspeed_settings
from autosync.exports.fsdp2 import fsdp2_settings
from autosync.exports.settings import FrameworkName, FrameworkSettings, refuse_extensions
from autosync.strategy import Strategy

TWO_LINES = """import autosync
model, optimizer = autosync.distribute(model, optimizer, "best.json")
"""


def two_lines(strategy: Strategy, domain: Domain) -> FrameworkSettings:
    """AutoSync itself, which runs every strategy from its bundle."""
    return FrameworkSettings("autosync", strategy.id, (), {"bundle": "best.json"}, {}, TWO_LINES)


EXPORTS: dict[FrameworkName, Callable[[Strategy, Domain], FrameworkSettings]] = {
    "autosync": two_lines,
    "ddp": ddp_settings,
    "fsdp2": fsdp2_settings,
    "deepspeed": deepspeed_settings,
}


def settings_for(framework: FrameworkName, strategy: Strategy, domain: Domain) -> FrameworkSettings:
    """
    Raises:
        InvalidStrategy: the strategy is for another graph.
        NotSupported: the framework cannot run it; names the variable and why.
    """
    if framework != "autosync":
        refuse_extensions(strategy, framework)
    return EXPORTS[framework](strategy, domain)
