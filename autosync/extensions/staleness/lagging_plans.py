"""Which plans may lag, and in which of the two forms."""

from collections.abc import Sequence

from torch import nn

from autosync.codes import Op
from autosync.errors import NotSupported
from autosync.plan import Message, Plan


def has_clocks(plan: Plan) -> bool:
    """Whether owners hold the values; else gradients are all-reduced and applied later."""
    return any(message.operation.to_owner for message in plan.messages)


def check_may_lag(plan: Plan, allowed: bool, optimizers: int) -> None:
    """Raises NotSupported where a plan that lags was not asked for, or has several optimizers."""
    if not allowed:
        raise NotSupported(
            f"the plan lets updates be {plan.staleness} iterations late, which is not the same "
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


def check_lagging_plan(
    plan: Plan, names: tuple[str, ...], parameters: Sequence[nn.Parameter]
) -> None:
    """Raises NotSupported for what only a plan of staleness 0 can do."""
    everyone = (tuple(range(plan.world_size)),)
    operations = (Op.PUSH, Op.PULL) if has_clocks(plan) else (Op.ALL_REDUCE,)
    usual = "between its owner and all ranks" if has_clocks(plan) else "by a plain all-reduce"
    for message in plan.messages:
        plain = message.operation in operations and message.encoding == 0
        if not plain or plan.teams[message.teams] != everyone:
            name = names[_variable_of(plan, message)]
            raise _refused(
                f"variable {name!r} travels otherwise than {usual}, as others do",
                f"variable {name}",
                message.operation.name.lower(),
            )
    if plan.overlap_forward:
        why = "it also lets messages run into the next forward pass, which staleness does by itself"
        raise _refused(why, "plan.overlap_forward", True)
    for name, parameter in zip(names, parameters, strict=True):
        if parameter.device.type != "cpu":
            why = (
                f"variable {name!r} is on {parameter.device}: late updates travel in host memory, "
                "by gloo. NCCL's messages occupy the device until their peers come"
            )
            raise _refused(why, f"variable {name}", str(parameter.device))


def _variable_of(plan: Plan, message: Message) -> int:
    return plan.shards[plan.buckets[message.bucket][0].shard].variable


def _refused(why: str, thing: str, value: object) -> NotSupported:
    return NotSupported(
        f"the plan lags, and {why}.",
        thing=thing,
        value=value,
        remedy="Use all_reduce for every variable, or parameter_server for every variable, without "
        "encodings, on a model in host memory; or staleness 0.",
    )
