"""torch's `fully_shard` as a choice of strategies, and the modules that it gathers as one."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import ConfigDict

from autosync.documents import STRICT
from autosync.errors import InvalidStrategy


@dataclass(frozen=True, slots=True)
class FullyShard:
    """torch's own FSDP2: each rank of a shard group holds one part of every parameter, of its
    gradient and of its optimizer state (torch.distributed.fsdp.fully_shard).

    units: names of modules, each gathered and reduced as one. What none of them holds belongs to
        the model itself: the root unit.
    shard_ranks: consecutive ranks that form a shard group. Where they are not all ranks, groups
        all-reduce what they have reduced: HSDP.
    reshard_after_forward: give a unit's values back after its forward, and gather them again for
        its backward (ZeRO-3); otherwise they stay until its backward is over (ZeRO-2). The root
        keeps its values, as torch has it by default.
    """

    units: tuple[str, ...]
    shard_ranks: int
    reshard_after_forward: bool = True
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
        if len(set(self.units)) != len(self.units) or "" in self.units:
            raise InvalidStrategy(
                "engine.units names a module twice, or the root, which needs no name.",
                thing="engine.units",
                value=self.units[:8],
            )

    def unit_of(self, variable: str) -> int:
        """The unit that holds a variable, by its name: the innermost one; `len(units)` is the
        root."""
        held = [i for i, unit in enumerate(self.units) if variable.startswith(f"{unit}.")]
        return max(held, key=lambda i: len(self.units[i]), default=len(self.units))

    def keeps_values(self, unit: int) -> bool:
        """Whether a unit's gathered values stay from its forward to its backward."""
        return not self.reshard_after_forward or unit == len(self.units)


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
