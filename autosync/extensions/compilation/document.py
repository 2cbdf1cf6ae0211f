"""What a strategy says of torch.compile: which consecutive blocks are compiled together."""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from autosync.documents import STRICT
from autosync.errors import InvalidStrategy
from autosync.extensions.document import ExtensionDocument

Regions = tuple[tuple[str, ...], ...]
"""Names of modules, as `model.get_submodule` takes them, in the order in which the forward pass
calls them."""


@dataclass(frozen=True, slots=True)
class CompiledRegions(ExtensionDocument):
    """The model is compiled as one graph, cut where a region begins. A region's gradients are ready
    together, when its backward pass ends: larger regions fuse more, and hide fewer messages.

    regions: what runs before the first one belongs to it; what runs behind one and in front of the
        next belongs to the former.
    """

    regions: Regions
    key: ClassVar[str] = "compile_regions"
    needs_plan: ClassVar[bool] = True
    unsteady_passes: ClassVar[int] = 2  # which the compiler works in
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        names = [name for region in self.regions for name in region]
        if not names or not all(self.regions):
            raise _refused(self.regions, "has a region without modules", "Name its modules.")
        twice = next((name for name, count in Counter(names).items() if count > 1), "")
        if twice:
            raise _refused(twice, f"names {twice!r} twice", "Name each module once.")
        if "" in names:
            raise _refused("", "names the whole model", "Name modules of it.")

    @property
    def begins_with(self) -> tuple[str, ...]:
        """The module that each region begins with."""
        return tuple(region[0] for region in self.regions)


def _refused(value: object, why: str, remedy: str) -> InvalidStrategy:
    return InvalidStrategy(
        f"compile_regions {why}.", thing="compile_regions", value=value, remedy=remedy
    )
