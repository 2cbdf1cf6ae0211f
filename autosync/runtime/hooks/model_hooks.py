"""Hooks of the script's model: where forward passes begin and end, and where its state is read."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from autosync.errors import InvalidInput
from autosync.runtime.execution.engine import Engine
from autosync.runtime.execution.nested_tensors import tensors_in
from autosync.runtime.hooks.forward_gates import Gates
from autosync.runtime.hooks.gradient_hooks import Removable, watch
from autosync.runtime.hooks.torch_compile import compiled_from


def install(handles: list[Removable], model: nn.Module, engine: Engine, gates: Gates) -> None:
    """Every hook of an attached plan. handles: receives each as it is installed, so that those
    before one that fails can be removed."""
    for variable in engine.variables:
        handle = watch(engine, variable)
        handles.append(handle)
    gates.install(
        _before_forward(model, engine, gates),
        _after_forward(model, engine, gates),
        _before_buffers(engine),
    )
    engine.is_blind = lambda: gates.inlined.seen
    for module in model.modules():
        handles.append(module.register_state_dict_pre_hook(_flush_before_reading(engine)))
        handles.append(module.register_load_state_dict_pre_hook(_before_loading(engine)))


def _before_forward(
    model: nn.Module, engine: Engine, gates: Gates
) -> Callable[[nn.Module, Any], None]:
    record = any(variable.deferred for variable in engine.variables)

    def hook(module: nn.Module, args: Any) -> None:
        if compiled_from(module) is not model:  # a copy of the model
            return
        if not (torch.is_grad_enabled() and model.training):
            engine.flush()
            return
        check_not_in_ddp(model)
        engine.begin_forward()
        gates.wait_for_model()
        if record and not gates.recorded:
            gates.start_recording()

    return hook


def check_not_in_ddp(model: nn.Module) -> None:
    """In a forward pass of the model. Raises InvalidInput where torch's DDP runs it."""
    ddp = DistributedDataParallel._active_ddp_module
    if ddp is not None and any(module is model for module in ddp.modules()):
        raise InvalidInput(
            f"torch's DistributedDataParallel was put around a model ({type(model).__name__}) that "
            "autosync.distribute has distributed, so both would average its gradients.",
            thing="model",
            value=type(model).__name__,
            remedy="Train the model that autosync.distribute returned and do not wrap it. "
            "Accelerate's prepare and a Trainer do: give them the plain model, and write "
            "`use_bundle(accelerator, bundle)` of autosync.frameworks.accelerate, or "
            "`use_bundle(trainer, bundle)` of autosync.frameworks.transformers, before, in place "
            "of autosync.distribute.",
        )


def _after_forward(
    model: nn.Module, engine: Engine, gates: Gates
) -> Callable[[nn.Module, Any, Any], None]:
    def expect_end(gradient: Tensor) -> None:
        engine.expect_end()

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if compiled_from(module) is not model:
            return
        gates.stop_recording()
        if engine.failure is not None:  # which the forward pass has raised
            return
        if not (torch.is_grad_enabled() and model.training and engine.synchronizing):
            return
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(expect_end)

    return hook


def _before_buffers(engine: Engine) -> Callable[[nn.Module, Any], None]:
    def hook(module: nn.Module, args: Any) -> None:
        engine.before_buffers()

    return hook


def _flush_before_reading(engine: Engine) -> Callable[..., None]:
    def hook(module: nn.Module, prefix: str, keep_vars: bool) -> None:
        engine.flush()

    return hook


def _before_loading(engine: Engine) -> Callable[..., None]:
    def hook(module: nn.Module, *args: Any) -> None:
        engine.before_load()

    return hook
