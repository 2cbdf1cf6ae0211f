"""What every export shares: the answer, the refusal, and the messages of strategies that other
frameworks may know: whole gradients of equal weight."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from autosync.documents import STRICT
from autosync.domain import Domain
from autosync.errors import InvalidStrategy, NotSupported
from autosync.extensions.registry import verification_of
from autosync.graph import DType, Variable
from autosync.strategy import (
    AllGather,
    AllReduce,
    Encoding,
    Strategy,
    Synchronizer,
    VariableChoice,
)
from autosync.verification.shard_checks import SHARE_TOLERANCE

FrameworkName = Literal[
    "autosync", "ddp", "fsdp2", "deepspeed", "megatron", "torchtitan", "accelerate", "nccl"
]

TITLES: dict[FrameworkName, str] = {
    "autosync": "AutoSync",
    "ddp": "torch's DDP",
    "fsdp2": "torch's FSDP2",
    "deepspeed": "DeepSpeed",
    "megatron": "Megatron-LM",
    "torchtitan": "torchtitan",
    "accelerate": "accelerate",
    "nccl": "NCCL",
}
SNIPPET_FILES: tuple[FrameworkName, ...] = ("megatron", "torchtitan")
"""Frameworks whose snippet is no Python but the file itself: arguments of a command, or TOML."""
SYNCHRONIZER_WORDS = {
    "parameter_server": "sent to a parameter server",
    "all_reduce": "all-reduced",
    "reduce_scatter": "reduce-scattered",
    "all_gather": "gathered by rows",
    "factors": "sent as two factors",
}


@dataclass(frozen=True, slots=True)
class FrameworkSettings:
    """A strategy in the words of a framework.

    deviations: what the framework does otherwise than the strategy; where there are none, the same
        gradients travel in the same messages in the same order. Results are those of synchronous
        data parallelism in any case.
    settings: keyword arguments of the wrapper, or the framework's configuration file.
    environment: variables that every rank needs.
    snippet: Python that applies all this to `model` and `optimizer`; of `SNIPPET_FILES` the lines
        of a file.
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
    framework: FrameworkName,
    why: str,
    *,
    thing: str = "strategy",
    value: object = None,
    nearest: str = "",
) -> NotSupported:
    """why, nearest: without a full stop; the latter is the nearest that the framework can run."""
    otherwise = f"The nearest is {nearest}" if nearest else "Export another strategy"
    return NotSupported(
        f"{TITLES[framework]} cannot run this strategy: {why}.",
        thing=thing,
        value=value,
        remedy=f"Apply its bundle with `autosync.distribute`. {otherwise}.",
    )


@dataclass(frozen=True, slots=True)
class GradientMessage:
    """Whole gradients of one type that travel as one.

    variables: by index, in the order in which their gradients get ready.
    """

    synchronizer: Synchronizer
    variables: tuple[int, ...]
    size_bytes: int
    elements: int


def whole_messages(
    strategy: Strategy, domain: Domain, framework: FrameworkName
) -> list[GradientMessage]:
    """In the order in which they are ready to leave.

    Raises:
        InvalidStrategy: it is for other variables.
        NotSupported: variables are cut, ranks weigh differently, or updates come late.
    """
    check_variables(strategy, domain)
    _check_alike(strategy, framework)
    merged: dict[tuple[int, Synchronizer, str], list[int]] = {}
    for index in domain.graph.gradient_order:
        choice, variable = strategy.choices[index], domain.graph.variables[index]
        if len(choice.shards) > 1:
            raise refused(
                framework,
                f"variable {variable.name!r} is cut into {len(choice.shards)} shards, and a "
                "gradient travels whole there",
                thing=f"variable {variable.name}",
                value=len(choice.shards),
            )
        (shard,) = choice.shards
        key = (shard.group, replace(shard, group=0), variable.dtype)
        merged.setdefault(key, []).append(index)
    place = {index: at for at, index in enumerate(domain.graph.gradient_order)}
    by_last = sorted(merged.items(), key=lambda item: place[item[1][-1]])
    return [_message(synchronizer, members, domain) for (_, synchronizer, _), members in by_last]


def all_reduced_messages(
    strategy: Strategy, domain: Domain, framework: FrameworkName
) -> list[GradientMessage]:
    """As `whole_messages`, where every dense gradient is all-reduced in the backend's own way and
    sparse ones are gathered.

    Raises:
        InvalidStrategy, NotSupported: names the variable and why.
    """
    check_variables(strategy, domain)
    for choice, variable in zip(strategy.choices, domain.graph.variables, strict=True):
        for shard in choice.shards:
            if variable.sparse and isinstance(shard, AllGather | AllReduce):
                continue
            if not isinstance(shard, AllReduce):
                raise _other_way(framework, choice, shard, "all-reduced")
            if shard.device_order:
                raise refused(
                    framework,
                    f"variable {choice.variable!r} travels along a ring of its own, and the "
                    "backend orders ranks there",
                    thing=f"variable {choice.variable}",
                    value=shard.device_order,
                )
            if shard.algorithm != "ring":
                raise refused(
                    framework,
                    f"variable {choice.variable!r} is added up by a {shard.algorithm} all-reduce, "
                    "and the backend chooses the algorithm there",
                    thing=f"variable {choice.variable}",
                    value=shard.algorithm,
                )
    if strategy.schedule.overlap_forward:
        raise refused(
            framework,
            "its messages continue during the next forward pass, and there all have ended before "
            "`optimizer.step()`",
            thing="schedule.overlap_forward",
            value=True,
        )
    return whole_messages(strategy, domain, framework)


def reduce_scattered_messages(
    strategy: Strategy, domain: Domain, framework: FrameworkName
) -> list[GradientMessage]:
    """As `whole_messages`, where every gradient is reduce-scattered.

    Raises:
        InvalidStrategy, NotSupported: names the variable and why.
    """
    check_variables(strategy, domain)
    for choice in strategy.choices:
        for shard in choice.shards:
            if shard.kind != "reduce_scatter":
                raise _other_way(framework, choice, shard, "reduce-scattered")
    return whole_messages(strategy, domain, framework)


def one_encoding(
    messages: list[GradientMessage], framework: FrameworkName, *, powersgd: bool = False
) -> Encoding:
    """How all messages of dense gradients are packed. powersgd: whether the framework has it.

    Raises:
        NotSupported: they are packed in several ways, or by PowerSGD, which it does not have.
    """
    packed = [m.synchronizer for m in messages if not isinstance(m.synchronizer, AllGather)]
    found = list(dict.fromkeys(getattr(each, "encoding", Encoding()) for each in packed))
    if len(found) > 1:
        names = ", ".join(encoding.name for encoding in found)
        why = f"its messages are packed in several ways ({names}), and there all alike"
        raise refused(framework, why, thing="encoding", value=names)
    encoding = found[0] if found else Encoding()
    if encoding.name == "powersgd" and not powersgd:
        raise refused(framework, "it has no PowerSGD", thing="encoding", value=encoding.name)
    return encoding


def schedule_deviations(
    strategy: Strategy, messages: list[GradientMessage], framework: FrameworkName
) -> list[str]:
    """What a framework that sends whole messages as they get ready does otherwise."""
    schedule, said = strategy.schedule, []
    title = TITLES[framework]
    if schedule.order in ("priority", "explicit"):
        order = "front layers first" if schedule.order == "priority" else "in its own order"
        said.append(f"{title} sends messages as they get ready; the strategy sends {order}.")
    cut = schedule.order != "ddp" and schedule.slice_bytes > 0
    if cut and any(message.size_bytes > schedule.slice_bytes for message in messages):
        said.append(
            f"{title} sends messages whole; the strategy cuts those above "
            f"{schedule.slice_bytes} bytes."
        )
    return said


def one_type(domain: Domain, framework: FrameworkName) -> DType:
    """Of all variables. Raises NotSupported where they have several."""
    types = sorted({variable.dtype for variable in domain.graph.variables})
    if len(types) > 1:
        why = f"its gradients have the types {', '.join(types)}, and there one"
        raise refused(framework, why, thing="variables", value=types)
    return types[0]


def sparse_variables(domain: Domain) -> list[Variable]:
    return [variable for variable in domain.graph.variables if variable.sparse]


def names_of(message: GradientMessage, domain: Domain) -> list[str]:
    return [domain.graph.variables[index].name for index in message.variables]


def _message(synchronizer: Synchronizer, members: list[int], domain: Domain) -> GradientMessage:
    variables = [domain.graph.variables[index] for index in members]
    return GradientMessage(
        synchronizer,
        tuple(members),
        sum(variable.size_bytes for variable in variables),
        sum(variable.elements for variable in variables),
    )


def check_variables(strategy: Strategy, domain: Domain) -> None:
    """Raises InvalidStrategy where it is for other variables."""
    given = [choice.variable for choice in strategy.choices]
    known = [variable.name for variable in domain.graph.variables]
    if given != known:
        odd = next((name for name in given if name not in set(known)), given[:1])
        raise InvalidStrategy(
            f"the strategy is not for graph {domain.graph.name!r}: it has {len(given)} variables, "
            f"the graph {len(known)}.",
            thing="strategy",
            value=odd,
            remedy="Export a strategy of this graph.",
        )


def refuse_extensions(strategy: Strategy, framework: FrameworkName) -> None:
    """Raises NotSupported where the strategy carries anything of an extension."""
    for entry in strategy.extensions:
        words = "; ".join(verification_of(entry.key).describe(strategy, None))
        raise refused(
            framework,
            f"it has {words}, for which there is no setting",
            thing=entry.key,
            value=words,
        )


def _check_alike(strategy: Strategy, framework: FrameworkName) -> None:
    shares = [replica.share for replica in strategy.replicas]
    if max(shares) - min(shares) > SHARE_TOLERANCE:
        raise refused(
            framework,
            f"its ranks have shares of the batch from {min(shares):.3g} to {max(shares):.3g}, and "
            "gradients of all ranks weigh the same there",
            thing="replicas",
            value=shares[:16],
        )


def _other_way(
    framework: FrameworkName, choice: VariableChoice, shard: Synchronizer, wanted: str
) -> Exception:
    return refused(
        framework,
        f"variable {choice.variable!r} is {SYNCHRONIZER_WORDS[shard.kind]}, and there every "
        f"gradient is {wanted}",
        thing=f"variable {choice.variable}",
        value=shard.kind,
    )
