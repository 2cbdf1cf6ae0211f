"""Settings of accelerate, which wraps models in torch's DDP: arguments of its
`DistributedDataParallelKwargs`."""

from typing import Any

from autosync.domain import Domain
from autosync.exports.ddp import POWERSGD_START, ddp_wrapping
from autosync.exports.settings import FrameworkSettings, refused
from autosync.strategy import Encoding, Strategy
from autosync.units import MIB

HOOKS = {"fp16": "FP16", "bf16": "BF16", "powersgd": "POWER_SGD"}
"""Members of accelerate's `DDPCommunicationHookType`, by encoding."""


def accelerate_settings(strategy: Strategy, domain: Domain) -> FrameworkSettings:
    """
    Raises:
        InvalidStrategy, NotSupported: accelerate cannot run it; names the variable and why.
    """
    if strategy.engine is not None:
        raise refused(
            "accelerate",
            "its FSDP plugin finds modules by their classes, and the strategy names each module",
            thing="engine",
            value=len(strategy.engine.units),
            nearest="`--for fsdp2`, whose snippet shards the model before `accelerator.prepare` "
            "(make an Accelerator with FullyShardedDataParallelPlugin(fsdp_version=2): another one "
            "refuses a sharded model)",
        )
    given, encoding, deviations = ddp_wrapping(strategy, domain, "accelerate")
    if sizes := given.get("bucket_cap_mb_list"):
        total = sum(variable.size_bytes for variable in domain.graph.variables)
        buckets = len({shard.group for choice in strategy.choices for shard in choice.shards})
        mean = max(1, round(total / buckets / MIB))
        raise refused(
            "accelerate",
            f"it takes one size for all buckets, and the strategy has a list of {len(sizes)}",
            thing="bucket_cap_mb_list",
            value=sizes[:8],
            nearest=f"bucket_cap_mb={mean}, the mean of its buckets",
        )
    arguments = given | _hook_arguments(encoding)
    settings: dict[str, Any] = {"DistributedDataParallelKwargs": arguments}
    if (batches := domain.accumulate) > 1:
        settings["Accelerator"] = {"gradient_accumulation_steps": batches}
        deviations.append(
            f"accelerate reduces the sum of the {batches} batches of an update once if each trains "
            "within accelerator.accumulate(model). accelerator.backward(loss) divides each loss by "
            f"{batches}: leave the division out of the script."
        )
    return FrameworkSettings(
        framework="accelerate",
        strategy_id=strategy.id,
        deviations=tuple(deviations),
        settings=settings,
        environment={},
        snippet=_snippet(given, encoding, batches),
    )


def _hook_arguments(encoding: Encoding) -> dict[str, Any]:
    if encoding.name == "none":
        return {}
    hook: dict[str, Any] = {"comm_hook": HOOKS[encoding.name].lower()}
    if encoding.name == "powersgd":
        hook["comm_state_option"] = {
            "matrix_approximation_rank": encoding.rank,
            "start_powerSGD_iter": POWERSGD_START,
        }
    return hook


def _snippet(given: dict[str, Any], encoding: Encoding, batches: int) -> str:
    shown = {name: repr(value) for name, value in given.items()}
    imports = "from accelerate import Accelerator, DistributedDataParallelKwargs\n"
    if encoding.name != "none":
        imports += "from accelerate.utils import DDPCommunicationHookType\n"
        hook = _hook_arguments(encoding)
        shown["comm_hook"] = f"DDPCommunicationHookType.{HOOKS[encoding.name]}"
        if "comm_state_option" in hook:
            shown["comm_state_option"] = repr(hook["comm_state_option"])
    arguments = ", ".join(f"{name}={value}" for name, value in shown.items())
    steps = f"gradient_accumulation_steps={batches}, " if batches > 1 else ""
    return f"""{imports}
wrapping = DistributedDataParallelKwargs({arguments})
accelerator = Accelerator({steps}kwargs_handlers=[wrapping])
"""
