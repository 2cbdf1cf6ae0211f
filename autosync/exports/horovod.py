"""Settings of Horovod: groups of gradients, its variables of the environment, compression.

Written after Horovod 0.28: a group is sent when all its gradients are ready on all ranks, and with
HOROVOD_DISABLE_GROUP_FUSION nothing else joins it; a message holds HOROVOD_FUSION_THRESHOLD bytes.
"""

from typing import Any

from autosync.domain import Domain
from autosync.exports.settings import (
    FrameworkSettings,
    GradientMessage,
    all_reduced_messages,
    names_of,
    one_encoding,
    refused,
    schedule_deviations,
    sparse_variables,
)
from autosync.strategy import AllReduce, Strategy

CYCLES = (
    "Horovod starts a message in the cycle (HOROVOD_CYCLE_TIME, 1 ms) after all ranks have said "
    "that it is ready; the strategy at once."
)


def horovod_settings(strategy: Strategy, domain: Domain) -> FrameworkSettings:
    """Arguments of DistributedOptimizer, and the environment of every rank.

    Raises:
        InvalidStrategy, NotSupported: Horovod cannot run it; names the variable and why.
    """
    messages = all_reduced_messages(strategy, domain, "horovod", hierarchical=True)
    variables = domain.graph.variables
    dense = [each for each in messages if not variables[each.variables[0]].sparse]
    encoding = one_encoding(messages, "horovod")
    if encoding.name not in ("none", "fp16"):
        why = f"its messages are packed by {encoding.name}, and `hvd.Compression` has fp16 alone"
        raise refused("horovod", why, thing="encoding", value=encoding.name)
    environment = {
        "HOROVOD_DISABLE_GROUP_FUSION": "1",
        "HOROVOD_FUSION_THRESHOLD": str(max((m.size_bytes for m in dense), default=0)),
    }
    if _hierarchical(dense):
        environment["HOROVOD_HIERARCHICAL_ALLREDUCE"] = "1"
    deviations = [CYCLES, *schedule_deviations(strategy, messages, "horovod")]
    if sparse_variables(domain):
        deviations.append("Horovod gathers each sparse gradient by itself.")
    groups = [names_of(message, domain) for message in dense]
    settings: dict[str, Any] = {"groups": groups, "compression": encoding.name, "op": "Average"}
    return FrameworkSettings(
        framework="horovod",
        strategy_id=strategy.id,
        deviations=tuple(deviations),
        settings={"DistributedOptimizer": settings},
        environment=environment,
        snippet=_snippet(groups, encoding.name, environment),
    )


def _hierarchical(dense: list[GradientMessage]) -> bool:
    """Raises NotSupported where some messages are and others not."""
    algorithms = {m.synchronizer.algorithm for m in dense if isinstance(m.synchronizer, AllReduce)}
    if len(algorithms) > 1:
        why = "some messages are added up inside nodes first and others not, and there all alike"
        raise refused("horovod", why, thing="algorithm", value=sorted(algorithms))
    return algorithms == {"hierarchical"}


def _snippet(groups: list[list[str]], compression: str, environment: dict[str, str]) -> str:
    exports = "\n".join(f"#   export {name}={value}" for name, value in environment.items())
    rows = "".join(f"    {names!r},\n" for names in groups)
    return f"""# Before every rank starts:
{exports}
import horovod.torch as hvd

hvd.init()
named = dict(model.named_parameters())
groups = [
{rows}]
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=named.items(),
    groups=[[named[name] for name in names] for names in groups],
    compression=hvd.Compression.{compression},
    op=hvd.Average,
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
"""
