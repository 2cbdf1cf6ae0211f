"""A strategy as settings of torch's DDP and FSDP2, DeepSpeed, Megatron-LM, torchtitan, accelerate
and NCCL, or a refusal that says why.

Pure functions of strategy and domain, a file for each framework; none of these is imported.
`settings` is their contract.
"""

from collections.abc import Callable
from dataclasses import replace

from autosync.domain import Domain
from autosync.exports.accelerate import accelerate_settings
from autosync.exports.ddp import ddp_settings
from autosync.exports.deepspeed import deepspeed_settings
from autosync.exports.fsdp2 import fsdp2_settings
from autosync.exports.megatron import megatron_settings
from autosync.exports.nccl import nccl_settings
from autosync.exports.settings import FrameworkName, FrameworkSettings, refuse_extensions
from autosync.exports.torchtitan import torchtitan_settings
from autosync.nccl_knobs import NcclKnobs, environment_of
from autosync.strategy import Strategy
from autosync.strategy_description import script_lines


def own_lines(strategy: Strategy, domain: Domain) -> FrameworkSettings:
    """AutoSync itself, which runs every strategy from its bundle."""
    knobs = strategy.extension(NcclKnobs)
    environment = environment_of(knobs) if knobs else {}
    snippet = "".join(f"{line}\n" for line in script_lines(strategy, "best.json"))
    return FrameworkSettings(
        "autosync", strategy.id, (), {"bundle": "best.json"}, environment, snippet
    )


EXPORTS: dict[FrameworkName, Callable[[Strategy, Domain], FrameworkSettings]] = {
    "autosync": own_lines,
    "ddp": ddp_settings,
    "fsdp2": fsdp2_settings,
    "deepspeed": deepspeed_settings,
    "megatron": megatron_settings,
    "torchtitan": torchtitan_settings,
    "accelerate": accelerate_settings,
    "nccl": nccl_settings,
}


def settings_for(framework: FrameworkName, strategy: Strategy, domain: Domain) -> FrameworkSettings:
    """
    Raises:
        InvalidStrategy: the strategy is for another graph.
        NotSupported: the framework cannot run it; names the variable and why.
    """
    if framework in ("autosync", "nccl"):
        return EXPORTS[framework](strategy, domain)
    knobs = strategy.extension(NcclKnobs)
    bare = strategy.without(NcclKnobs)
    refuse_extensions(bare, framework)
    found = EXPORTS[framework](bare, domain)
    if knobs is None:
        return found
    environment = found.environment | environment_of(knobs)
    return replace(found, strategy_id=strategy.id, environment=environment)
