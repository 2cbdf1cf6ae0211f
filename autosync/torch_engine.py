"""Arguments of torch's own engines as choices of strategies: DistributedDataParallel, and
`fully_shard` with the modules that it gathers as one."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict

from autosync.documents import (
    LARGEST_COUNT,
    STRICT,
    UNLESS_EMPTY,
    UNLESS_FALSE,
    UNLESS_NO_ITEMS,
    UNLESS_ONE,
)
from autosync.errors import InvalidStrategy
from autosync.units import MIB

DDP_BUCKET_BYTES = 25 * MIB
"""torch's DistributedDataParallel default, `bucket_cap_mb=25`."""

DDP_FIRST_BUCKET_BYTES = MIB
"""torch's `dist._DEFAULT_FIRST_BUCKET_BYTES`: DDP at its defaults keeps its first bucket small."""


@dataclass(frozen=True, slots=True)
class DdpArguments:
    """Arguments of torch's DistributedDataParallel beside one size of all buckets, which is
    `Schedule.slice_bytes`.

    bucket_limits_bytes: of the first, the second, ... bucket of each type, the last for all that
        follow (`bucket_cap_mb_list`); empty for one size.
    gradient_as_bucket_view: gradients are views of the buckets that are reduced.
    """

    bucket_limits_bytes: Annotated[tuple[int, ...], UNLESS_NO_ITEMS] = ()
    gradient_as_bucket_view: Annotated[bool, UNLESS_FALSE] = False
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        limits = self.bucket_limits_bytes
        if len(limits) == 1 or any(not 0 < limit <= LARGEST_COUNT for limit in limits):
            raise InvalidStrategy(
                f"schedule.ddp.bucket_limits_bytes is {limits[:8]}.",
                thing="schedule.ddp.bucket_limits_bytes",
                value=limits[:8],
                remedy="Give two sizes or more, in bytes; a single one is schedule.slice_bytes.",
            )


Unit = str | tuple[str, ...]
"""A module by its name, or several that are gathered and reduced as one."""

HalfName = Literal["bf16", "fp16"]

Kept = Literal["", "gradients", "values"]
"""What a rank keeps whole between the batches of one update: nothing; gradients; or the gathered
values, too."""

Reshard = bool | int
"""Whether a unit gives its values back after its forward; a number of ranks: each keeps a part of
them, and so many consecutive ranks hold the whole."""

MOST_PREFETCHED = 8
"""Units that may be gathered ahead; what is gathered is held as a whole."""

WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
"""Words that torch.compile and torch's checkpoint_wrapper add to names."""


@dataclass(frozen=True, slots=True)
class FullyShard:
    """torch's own FSDP2: each rank of a shard group holds one part of every parameter, of its
    gradient and of its optimizer state (torch.distributed.fsdp.fully_shard).

    units: modules, or lists of modules, each gathered and reduced as one. Prefetching takes their
        order for that of the forward pass. What none of them holds belongs to the model itself:
        the root unit.
    shard_ranks: consecutive ranks that form a shard group. Where they are not all ranks, groups
        all-reduce what they have reduced: HSDP.
    reshard_after_forward: give a unit's values back after its forward, and gather them again for
        its backward (ZeRO-3); otherwise they stay until its backward is over (ZeRO-2). A number
        of ranks, a divisor of `shard_ranks`: keep parts that so many consecutive ranks gather
        again among themselves, those of a node for instance. One value for all units, or one for
        each. The root keeps its values, as torch has it by default.
    param_dtype: the type in which values are gathered and computed with, and in which gradients
        are made, where that is not the variables' own; a rank's part, which the optimizer updates,
        stays in that. Gradients are reduced in the variables' own type unless their shards have an
        encoding.
    forward_prefetch, backward_prefetch: units whose gathers are asked for while one computes. 1 is
        what torch does by itself; more is `set_modules_to_forward_prefetch` and
        `set_modules_to_backward_prefetch`.
    kept_between_batches: where the gradients of several batches are added up before an update, what
        a rank keeps whole from one to the next. Nothing: each batch reduces its gradients, as torch
        does by itself. `gradients`: the last batch alone reduces them
        (`set_requires_gradient_sync`). `values`: gradients, and the values that backward has
        gathered, which the next forward pass needs (`set_reshard_after_backward`).
    """

    units: tuple[Unit, ...]
    shard_ranks: int
    reshard_after_forward: Reshard | tuple[Reshard, ...] = True
    forward_prefetch: Annotated[int, UNLESS_ONE] = 1
    backward_prefetch: Annotated[int, UNLESS_ONE] = 1
    param_dtype: Annotated[HalfName | Literal[""], UNLESS_EMPTY] = ""
    kept_between_batches: Annotated[Kept, UNLESS_EMPTY] = ""
    kind: Literal["fully_shard"] = "fully_shard"
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if self.shard_ranks < 2:
            raise InvalidStrategy(
                f"engine.shard_ranks is {self.shard_ranks}: a shard group has 2 ranks or more.",
                thing="engine.shard_ranks",
                value=self.shard_ranks,
                remedy="Give all ranks for FSDP2, those of a node for HSDP.",
            )
        _check_modules(self.units)
        one_by_one = self.reshard_after_forward
        if isinstance(one_by_one, tuple) and len(one_by_one) != len(self.units):
            raise InvalidStrategy(
                f"engine.reshard_after_forward has {len(one_by_one)} values for "
                f"{len(self.units)} units.",
                thing="engine.reshard_after_forward",
                value=len(one_by_one),
                remedy="Give one for each unit, or one for all.",
            )
        for ranks in self.smaller_groups:
            if ranks < 2 or ranks >= self.shard_ranks or self.shard_ranks % ranks:
                raise InvalidStrategy(
                    f"engine.reshard_after_forward is {ranks} ranks of {self.shard_ranks}.",
                    thing="engine.reshard_after_forward",
                    value=ranks,
                    remedy="Give a divisor of shard_ranks that is neither 1 nor all, such as the "
                    "ranks of a node; true or false otherwise.",
                )
        if isinstance(one_by_one, tuple) and len(set(one_by_one)) == 1:
            object.__setattr__(self, "reshard_after_forward", one_by_one[0])
        for name in ("forward_prefetch", "backward_prefetch"):
            if not 1 <= getattr(self, name) <= MOST_PREFETCHED:
                raise InvalidStrategy(
                    f"engine.{name} is {getattr(self, name)}.",
                    thing=f"engine.{name}",
                    value=getattr(self, name),
                    remedy=f"Give 1, which is what torch does by itself, to {MOST_PREFETCHED}.",
                )

    def unit_of(self, variable: str) -> int:
        """The unit that holds a variable, by its name: the innermost one; `len(units)` is the
        root."""
        held = [
            (len(module), unit)
            for unit, modules in enumerate(self.units)
            for module in modules_of(modules)
            if variable.startswith(f"{module}.")
        ]
        return max(held, default=(0, len(self.units)))[1]

    @property
    def resharding(self) -> tuple[Reshard, ...]:
        """`reshard_after_forward` of each unit, without the root."""
        each = self.reshard_after_forward
        return each if isinstance(each, tuple) else (each,) * len(self.units)

    def keeps_values(self, unit: int) -> bool:
        """Whether a unit's gathered values stay from its forward to its backward."""
        return unit == len(self.units) or not self.resharding[unit]

    def gathers_again_over(self, unit: int) -> int:
        """Ranks among which a unit's values are gathered for its backward; 0 where they stay."""
        if self.keeps_values(unit):
            return 0
        each = self.resharding[unit]
        return self.shard_ranks if each is True else each

    @property
    def smaller_groups(self) -> tuple[int, ...]:
        """Numbers of ranks to which units reshard, where that is not their whole shard group."""
        each = self.reshard_after_forward
        values = each if isinstance(each, tuple) else (each,)
        return tuple(dict.fromkeys(ranks for ranks in values if not isinstance(ranks, bool)))

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Numbers of ranks that share values at some time, the shard group's first."""
        return (self.shard_ranks, *self.smaller_groups)

    @property
    def kept_units(self) -> int:
        """How many units, the root aside, keep their values."""
        return sum(not each for each in self.resharding)


def modules_of(unit: Unit) -> tuple[str, ...]:
    return (unit,) if isinstance(unit, str) else unit


def unit_of_modules(modules: Sequence[str]) -> Unit:
    """Of one or more."""
    return modules[0] if len(modules) == 1 else tuple(modules)


def _check_modules(units: tuple[Unit, ...]) -> None:
    """Raises InvalidStrategy where no calls of `fully_shard` make these units."""
    names = [name for unit in units for name in modules_of(unit)]
    if len(set(names)) != len(names) or "" in names:
        raise InvalidStrategy(
            "engine.units names a module twice, or the root, which needs no name.",
            thing="engine.units",
            value=units[:8],
        )
    for unit in units:
        if isinstance(unit, tuple) and len(unit) < 2:
            raise InvalidStrategy(
                f"engine.units has a list of {len(unit)} modules.",
                thing="engine.units",
                value=unit,
                remedy="Give the name of a single module without a list.",
            )
        for one, inner in pairwise(sorted(f"{name}." for name in modules_of(unit))):
            if inner.startswith(one):
                raise InvalidStrategy(
                    f"engine.units lists {inner[:-1]!r} beside {one[:-1]!r}, which holds it.",
                    thing="engine.units",
                    value=unit,
                    remedy="Leave the inner one out, or make it a unit of its own.",
                )


def usual_units(variables: Sequence[str]) -> tuple[str, ...]:
    """The modules that one would wrap by hand, from the names of a model's variables.

    Numbered blocks (`layers.0`, `layer1.2`), the outermost; without any, modules whose names end
    in a number; without these, the model's children.
    """
    numbered = _distinct(_block(name, r"\d+") for name in variables)
    if numbered:
        return numbered
    ending = _distinct(_block(name, r"\D+\d+") for name in variables)
    return ending or _distinct(_child(name, _shared_prefix(variables)) for name in variables)


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in dict.fromkeys(names) if name)


def _block(variable: str, pattern: str) -> str:
    """The outermost module with a matching name that holds the variable; empty without one."""
    modules = variable.split(".")[:-1]
    for place, name in enumerate(modules):
        if re.fullmatch(pattern, name):
            return ".".join(modules[: place + 1])
    return ""


def _child(variable: str, prefix: tuple[str, ...]) -> str:
    modules = variable.split(".")[:-1]
    return ".".join(modules[: len(prefix) + 1]) if len(modules) > len(prefix) else ""


def _shared_prefix(variables: Sequence[str]) -> tuple[str, ...]:
    """Modules that hold all variables, from the outside."""
    paths = [name.split(".")[:-1] for name in variables]
    shared: list[str] = []
    for level in zip(*paths, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return tuple(shared)
