"""Knobs of NCCL: environment, options of a process group, a file of its example tuner plugin."""

from autosync.domain import Domain
from autosync.errors import NotSupported
from autosync.exports.settings import FrameworkSettings, check_variables
from autosync.nccl_knobs import (
    OPERATIONS,
    TUNER_FILE,
    NcclKnobs,
    environment_of,
    group_configuration,
    tuner_configuration,
)
from autosync.strategy import Strategy

ONE_CHANNEL = (
    "NCCL's example tuner plugin gives one channel to messages that no line of its file is for: "
    "the file has none for all sizes of {others}."
)
SNIPPET = """import torch

options = torch.distributed.ProcessGroupNCCL.Options()
{lines}
torch.distributed.init_process_group("nccl", pg_options=options)
"""


def nccl_settings(strategy: Strategy, domain: Domain) -> FrameworkSettings:
    """The file of the tuner plugin is a setting by its name.

    Raises:
        InvalidStrategy: the strategy is for another graph.
        NotSupported: it states no knobs of NCCL.
    """
    check_variables(strategy, domain)
    knobs = strategy.extension(NcclKnobs)
    if knobs is None:
        raise NotSupported(
            "the strategy states nothing of NCCL.",
            thing="strategy.nccl",
            value=None,
            remedy="Leave NCCL as it is, or export a strategy that sets its knobs.",
        )
    tuner = tuner_configuration(knobs)
    options = group_configuration(knobs)
    lines = "\n".join(f"options.config.{name} = {value}" for name, value in options.items())
    return FrameworkSettings(
        framework="nccl",
        strategy_id=strategy.id,
        deviations=tuple(_deviations(knobs)),
        settings={"config": options} | ({TUNER_FILE: tuner} if tuner else {}),
        environment=environment_of(knobs),
        snippet=SNIPPET.format(lines=lines) if options else "",
    )


def _deviations(knobs: NcclKnobs) -> list[str]:
    """Of the tuner plugin, whose file cannot say "as NCCL would"."""
    if not knobs.by_size:
        return []
    stated = {each.operation for each in knobs.ranges if not each.least_bytes}
    others = [name for name in OPERATIONS if name not in stated]
    return [ONE_CHANNEL.format(others=", ".join(others))] if others else []
