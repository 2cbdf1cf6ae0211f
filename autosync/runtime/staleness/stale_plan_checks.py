"""What a plan that lags cannot be, or cannot be put on."""

from collections.abc import Sequence

from torch import nn

from autosync.codes import Op
from autosync.errors import NotSupported
from autosync.plan import Plan


def check_may_lag(plan: Plan, allowed: bool, optimizers: int) -> None:
    """Raises NotSupported where a plan that lags was not asked for, or has several optimizers."""
    if not allowed:
        raise NotSupported(
            f"the plan applies gradients {plan.staleness} iterations later, which is not the same "
            "training.",
            thing="plan.staleness",
            value=plan.staleness,
            remedy="Pass allow_staleness=True where the training can bear it, or use a strategy of "
            "staleness 0.",
        )
    if optimizers != 1:
        raise NotSupported(
            f"the plan lags, and {optimizers} optimizers were given.",
            thing="optimizer",
            value=optimizers,
            remedy="Give one optimizer with a parameter group each, or use staleness 0.",
        )


def check_stale_plan(
    plan: Plan, names: tuple[str, ...], parameters: Sequence[nn.Parameter]
) -> None:
    """Raises NotSupported for what only a plan of staleness 0 can do."""
    everyone = (tuple(range(plan.world_size)),)
    for message in plan.messages:
        plain = message.operation == Op.ALL_REDUCE and message.encoding == 0
        if not plain or plan.teams[message.teams] != everyone:
            shard = plan.shards[plan.buckets[message.bucket][0].shard]
            raise _refused(
                f"variable {names[shard.variable]!r} travels otherwise than by a plain all-reduce "
                "between all ranks",
                f"variable {names[shard.variable]}",
                message.operation.name.lower(),
            )
    if plan.overlap_forward:
        why = "it also lets messages run into the next forward pass, which staleness does by itself"
        raise _refused(why, "plan.overlap_forward", True)
    for name, parameter in zip(names, parameters, strict=True):
        if parameter.device.type != "cpu":
            where = f"variable {name!r} is on {parameter.device}, and plans that lag run in host "
            raise _refused(where + "memory only", f"variable {name}", str(parameter.device))


def _refused(why: str, thing: str, value: object) -> NotSupported:
    return NotSupported(
        f"the plan lags, and {why}.",
        thing=thing,
        value=value,
        remedy="Use all_reduce for every variable, without encodings, or staleness 0.",
    )
