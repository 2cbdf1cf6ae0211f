"""A model that stands in for another in trials: it has variables and passes, but no modules."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import nn

from autosync.extensions.placement.document import PlacedModules
from autosync.extensions.placement.row_exchange import RowExchange
from autosync.runtime.hooks.gradient_hooks import Removable


@runtime_checkable
class PlacedStandIn(Protocol):
    """Does by itself what placed modules would make of its passes."""

    def parameters_of(self, module: str) -> Sequence[nn.Parameter]:
        """Those that stand for the variables of a module of the other model."""
        ...

    def place(self, placement: PlacedModules, exchange: RowExchange) -> Removable:
        """From now on until that is removed, its passes deal as much as placed modules would, and
        this rank computes its own share of them."""
        ...
