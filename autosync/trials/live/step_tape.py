"""One iteration of a running job's own step, recorded with hooks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from autosync.errors import InvalidInput
from autosync.runtime.execution.pending import tensors_in
from autosync.trials.device_clock import DeviceMoment, moment_now
from autosync.trials.live.live_job import LiveJob


@dataclass(slots=True)
class Call:
    """A forward of a module that owns `variables`."""

    name: str
    type: str
    variables: tuple[int, ...]
    rows: int
    begun: DeviceMoment
    output_bytes: int = 0


@dataclass(slots=True)
class Tape:
    """One recorded iteration. called: modules around variables, by name. ready: by variable, when
    its gradient was last complete."""

    begun: DeviceMoment
    calls: list[Call] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    batch_size: int = 0
    forward_ended: DeviceMoment | None = None
    ready: dict[int, DeviceMoment] = field(default_factory=dict)
    gradients: dict[int, int] = field(default_factory=dict)
    touched: dict[int, int] = field(default_factory=dict)
    update: list[DeviceMoment] = field(default_factory=list)
    ended: DeviceMoment | None = None


def record_tape(job: LiveJob, named: dict[str, nn.Parameter], iteration: int) -> Tape:
    tape = Tape(moment_now(job.device))
    handles = _hooks(job, named, tape)
    try:
        job.run_step(job.model, iteration)
        tape.ended = moment_now(job.device)
    finally:
        for handle in handles:
            handle.remove()
    return tape


def _hooks(job: LiveJob, named: dict[str, nn.Parameter], tape: Tape) -> list[RemovableHandle]:
    index = {id(p): v for v, p in enumerate(named.values())}
    handles: list[Any] = []
    for name, module in job.model.named_modules():
        if any(id(p) in index for p in module.parameters()):
            handles.append(module.register_forward_pre_hook(_on_any_call(tape, name)))
        own = tuple(index[id(p)] for p in module.parameters(recurse=False) if id(p) in index)
        if own:
            running: list[Call] = []
            on_call = _on_call(tape, name, own, job.device, running)
            handles.append(module.register_forward_pre_hook(on_call))
            handles.append(module.register_forward_hook(_on_output(running)))
    handles.append(job.model.register_forward_pre_hook(_on_input(tape), with_kwargs=True))
    handles.append(job.model.register_forward_hook(_on_end(tape, job.device)))
    for v, parameter in enumerate(named.values()):
        hook = _on_gradient(tape, v, job.device)
        handles.append(parameter.register_post_accumulate_grad_hook(hook))
    note = _on_update(tape, job.device)
    for optimizer in job.optimizers:
        handles.append(optimizer.register_step_pre_hook(note))
        handles.append(optimizer.register_step_post_hook(note))
    return handles


def _counts() -> bool:
    """Whether a forward trains: not an evaluation, not recomputed within a backward pass."""
    return torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1


def _on_any_call(tape: Tape, name: str) -> Callable[[nn.Module, Any], None]:
    """Also where a checkpoint runs the module, within a backward pass or without gradients."""

    def hook(module: nn.Module, args: Any) -> None:
        tape.called.add(name)

    return hook


def _on_call(
    tape: Tape, name: str, own: tuple[int, ...], device: torch.device, running: list[Call]
) -> Callable[[nn.Module, Any], None]:
    def hook(module: nn.Module, args: Any) -> None:
        if _counts():
            rows = 0
            if isinstance(module, nn.Linear) and args and args[0].dim():
                rows = args[0].numel() // max(1, args[0].shape[-1])
            module_type = type(module).__name__.lower()
            call = Call(name or module_type, module_type, own, rows, moment_now(device))
            tape.calls.append(call)
            running.append(call)

    return hook


def _on_output(running: list[Call]) -> Callable[[nn.Module, Any, Any], None]:
    """running: calls of this module that have not returned; of others inside it, none."""

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if _counts() and running:
            running.pop().output_bytes = sum(tensor.nbytes for tensor in tensors_in(output))

    return hook


def _on_input(tape: Tape) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
        shaped = [tensor for tensor in tensors_in((args, kwargs)) if tensor.dim()]
        if _counts() and shaped:
            tape.batch_size = tape.batch_size or int(shaped[0].shape[0])

    return hook


def _on_end(tape: Tape, device: torch.device) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if _counts():
            tape.forward_ended = moment_now(device)

    return hook


def _on_gradient(tape: Tape, variable: int, device: torch.device) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        tape.ready.pop(variable, None)
        tape.ready[variable] = moment_now(device)
        tape.gradients[variable] = tape.gradients.get(variable, 0) + 1
        if parameter.grad is not None and parameter.grad.is_sparse:
            tape.touched[variable] = int(parameter.grad.coalesce().indices().shape[1])

    return hook


def _on_update(tape: Tape, device: torch.device) -> Callable[..., None]:
    def hook(*args: Any) -> None:
        tape.update.append(moment_now(device))

    return hook


def add_unused(tape: Tape, variables: int) -> None:
    """Parameters without a gradient count as ready last, with the end of the backward pass."""
    last = next(reversed(tape.ready.values()), tape.forward_ended)
    for variable in range(variables):
        if last is not None:
            tape.ready.setdefault(variable, last)


def mean_touched(tapes: Sequence[Tape]) -> dict[int, int]:
    """Rows of each sparse gradient, the mean over all tapes, at least 1."""
    variables = {variable for tape in tapes for variable in tape.touched}
    rows = {v: sum(tape.touched.get(v, 0) for tape in tapes) for v in variables}
    return {v: max(1, round(total / len(tapes))) for v, total in rows.items()}


def refuse_odd_step(tape: Tape, names: list[str], takes_unused: bool = False) -> None:
    """takes_unused: parameters may be without a gradient.

    Raises:
        InvalidInput: the step is not one whole iteration.
    """
    if not tape.calls or tape.forward_ended is None:
        raise step_refusal("does not call the model it is given")
    if not tape.update:
        raise step_refusal(
            "does not call optimizer.step()",
            "A step is one whole iteration: forward, backward, optimizer.step(). A gradient scaler "
            "leaves the last out where gradients overflow: tune once its scale has settled.",
        )
    for variable, name in enumerate(names):
        count = tape.gradients.get(variable, 0)
        if count == 0 and not takes_unused:
            raise step_refusal(
                f"gives parameter {name!r} no gradient",
                "Freeze that parameter; or, where some steps leave parameters out, give "
                "ddp_options={'find_unused_parameters': True}.",
            )
        if count > 1:
            raise step_refusal(
                f"runs {count} backward passes", "Give it one: accumulate outside of tune()."
            )


def step_refusal(what: str, remedy: str = "") -> InvalidInput:
    usual = "A step is one whole iteration: forward, backward, optimizer.step()."
    return InvalidInput(f"step {what}.", thing="step", value=what, remedy=remedy or usual)
