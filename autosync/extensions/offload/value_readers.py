"""Which modules read which parameters, as far as a model's structure tells."""

from collections.abc import Collection

from torch import nn


def reading_modules(model: nn.Module, parameters: Collection[int]) -> dict[nn.Module, list[int]]:
    """Which of some parameters, by their identity, the forward pass of each module reads: those
    that it owns, or that a list of parameters owns for it, which has no forward pass."""
    found: dict[nn.Module, list[int]] = {}
    seen: set[tuple[int, int]] = set()

    def visit(module: nn.Module, reader: nn.Module) -> None:
        if (id(module), id(reader)) in seen:
            return
        seen.add((id(module), id(reader)))
        own = [id(each) for each in module._parameters.values() if id(each) in parameters]
        if own:
            found[reader] = [*found.get(reader, []), *own]
        for child in module.children():
            visit(child, child if _has_forward(child) else reader)

    visit(model, model)
    return found


def _has_forward(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward
