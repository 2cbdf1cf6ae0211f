"""The state of a training job, put back bit for bit after every trial."""

import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader

from autosync.extensions.offload.arena import host_memory
from autosync.runtime.updates.optimizers import has_begun

OF_SCALER = ("grad_scale", "found_inf")
"""What a GradScaler leaves on a fused optimizer whose step fails; a script may set it, too."""


class Stateful(Protocol):
    """A scheduler, a gradient scaler, a data loader that can go back."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a step changes: values and gradients of parameters, module buffers and modes,
    the optimizer's state and settings, other stateful objects, random states, generators of a data
    loader.

    Values of a GPU are saved in host memory, the optimizer's state and others' among them: so a
    trial has the memory that training has.
    """

    parameters: list[tuple[nn.Parameter, Tensor, Tensor | None]]
    buffers: list["BufferCopy"]
    modes: list[tuple[nn.Module, bool]]
    optimizers: list["OptimizerCopy"]
    others: list[tuple[Stateful, dict[str, Any]]]
    random_states: tuple[Any, Any, Tensor, list[Tensor]]
    generators: list[tuple[torch.Generator, Tensor]]

    def restore(self) -> None:
        """Parameters and buffers keep their identity and storage. Where a part cannot be put back
        (its device is full, for instance), the others are, and the error is raised after them."""
        with ExitStack() as parts:  # the last one first
            parts.callback(_restore_random, self.random_states)
            parts.callback(self._restore_generators)
            parts.callback(self._restore_others)
            parts.callback(self._restore_modes)
            for optimizer in reversed(self.optimizers):
                parts.callback(optimizer.restore)
            parts.callback(self._restore_buffers)
            for saved in reversed(self.parameters):
                parts.callback(_restore_parameter, *saved)

    def _restore_buffers(self) -> None:
        for copy in self.buffers:
            copy.restore()

    def _restore_generators(self) -> None:
        for generator, state in self.generators:
            generator.set_state(state)

    def _restore_modes(self) -> None:
        for module, training in self.modes:
            module.training = training

    def _restore_others(self) -> None:
        for other, state in self.others:
            other.load_state_dict(restored(state))
            if isinstance(other, GradScaler):
                other._per_optimizer_states.clear()  # what a step that failed half way had begun


@dataclass(frozen=True, slots=True)
class BufferCopy:
    """A buffer of a module, which may replace it by another tensor. held: where it holds it."""

    held: dict[str, Any]
    name: str
    buffer: Tensor
    value: Tensor

    def restore(self) -> None:
        self.held[self.name] = self.buffer
        with torch.no_grad():
            self.buffer.copy_(self.value)


@dataclass(frozen=True, slots=True)
class OptimizerCopy:
    """State of an optimizer by parameter, its groups without their parameters, whether it has
    stepped, and its attributes that are `OF_SCALER` or numbers, in which its class may count."""

    optimizer: Optimizer
    state: dict[Any, dict[str, Any]]
    groups: list[dict[str, Any]]
    has_begun: bool
    attributes: dict[str, Any]

    def restore(self) -> None:
        for name in OF_SCALER:
            self.optimizer.__dict__.pop(name, None)
        self.optimizer.__dict__.update(self.attributes)
        self.optimizer.state.clear()
        for key, state in self.state.items():
            self.optimizer.state[key] = restored(state)
        for group, group_before in zip(self.optimizer.param_groups, self.groups, strict=True):
            members = group["params"]
            group.clear()
            group.update(restored(group_before), params=members)


def take_snapshot(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    others: Sequence[Stateful] = (),
    batches: object = None,
) -> Snapshot:
    """batches: what the steps' batches come from, before any has been drawn. What an optimizer
    trains beside the model, in a loss say, is saved, too."""
    every = _with_inner(optimizers)
    trained = [p for each in every for group in each.param_groups for p in group["params"]]
    return Snapshot(
        parameters=[
            (p, host_copy(p.detach()), None if p.grad is None else host_copy(p.grad))
            for p in dict.fromkeys([*model.parameters(), *trained])
        ],
        buffers=[copy for module in model.modules() for copy in _buffer_copies(module)],
        modes=[(module, module.training) for module in model.modules()],
        optimizers=_optimizer_copies(every),
        others=[(other, saved(other.state_dict())) for other in others],
        random_states=_random(),
        generators=[(each, each.get_state()) for each in _generators(batches)],
    )


def _buffer_copies(module: nn.Module) -> list[BufferCopy]:
    """Of a module itself, without those that it contains."""
    own: dict[str, Any] = dict(module.named_buffers(recurse=False, remove_duplicate=False))
    held: dict[str, Any] = module._buffers if "_buffers" in module.__dict__ else own
    return [BufferCopy(held, name, buffer, host_copy(buffer)) for name, buffer in own.items()]


def _generators(batches: object) -> list[torch.Generator]:
    """From which a data loader and its samplers draw in place of torch's own."""
    if not isinstance(batches, DataLoader):
        return []
    holders: list[object] = [batches, batches.sampler, batches.batch_sampler]
    holders.append(getattr(batches.batch_sampler, "sampler", None))
    found = [getattr(holder, "generator", None) for holder in holders]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


def _restore_parameter(parameter: nn.Parameter, value: Tensor, gradient: Tensor | None) -> None:
    with torch.no_grad():
        parameter.copy_(value)
        parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)


def _with_inner(optimizers: Sequence[Optimizer]) -> list[Optimizer]:
    """And those that they step inside of their own `step()`, where much of the state is: as
    Lookahead and ZeroRedundancyOptimizer do."""
    found: list[Optimizer] = []
    left = list(optimizers)
    while left:
        one = left.pop()
        if not any(one is known for known in found):
            found.append(one)
            left += [held for held in tree_leaves(vars(one)) if isinstance(held, Optimizer)]
    return found


def _optimizer_copies(optimizers: list[Optimizer]) -> list[OptimizerCopy]:
    """A state that a wrapper shows as its own, as that of Accelerate does, is saved once."""
    made: list[OptimizerCopy] = []
    for one in optimizers:
        shown = next((copy.state for copy in made if copy.optimizer.state is one.state), None)
        made.append(_optimizer_copy(one, shown))
    return made


def _optimizer_copy(optimizer: Optimizer, state: dict[Any, dict[str, Any]] | None) -> OptimizerCopy:
    if state is None:
        state = {key: saved(value) for key, value in optimizer.state.items()}
    return OptimizerCopy(
        optimizer,
        state,
        groups=[
            {name: saved(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ],
        has_begun=has_begun(optimizer),
        attributes={
            name: value
            for name, value in vars(optimizer).items()
            if name in OF_SCALER or isinstance(value, int | float)
        },
    )


def host_copy(tensor: Tensor) -> Tensor:
    with host_memory():
        return tensor.to("cpu", copy=True)


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """values: in host memory. device: where the tensor was."""

    values: Tensor
    device: torch.device


def saved(value: Any) -> Any:
    """Containers anew, tensors in host memory."""
    return tree_map_only(
        Tensor, lambda one: SavedTensor(host_copy(one.detach()), one.device), value
    )


def restored(value: Any) -> Any:
    """What was `saved`: new tensors each time, on the devices where they were."""
    return tree_map_only(SavedTensor, lambda one: one.values.to(one.device, copy=True), value)


def _random() -> tuple[Any, Any, Tensor, list[Tensor]]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda


def _restore_random(states: tuple[Any, Any, Tensor, list[Tensor]]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    if states[3]:
        torch.cuda.set_rng_state_all(states[3])
