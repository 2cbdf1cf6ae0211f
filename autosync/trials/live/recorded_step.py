"""One iteration of a running job's own step, recorded with hooks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from autosync.device_clock import Moment, moment_now
from autosync.errors import InvalidInput
from autosync.runtime.execution.pending import tensors_in
from autosync.trials.live.job import LiveJob


@dataclass(slots=True)
class Call:
    """A forward of a module that owns `variables`. name: of the operation, the module's path and
    type. in_graph: autograd recorded it."""

    name: str
    type: str
    variables: tuple[int, ...]
    rows: int
    begun: Moment
    output_bytes: int = 0
    in_graph: bool = True


@dataclass(slots=True)
class Tape:
    """One recorded iteration; of one that adds up the gradients of several batches, the last batch.

    called: modules around variables, by name. ready: by variable, when its gradient was last
    complete. touched: by variable, rows of its gradient, which adds up all batches so far. batches:
    of the iteration, which began at step_begun. updated_early: one of them came behind an update.
    in_forward: the model has been called, to train, and has not returned. recomputed: names of
    operations that a checkpoint ran within a backward pass.
    """

    begun: Moment
    calls: list[Call] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    batch_size: int = 0
    forward_ended: Moment | None = None
    ready: dict[int, Moment] = field(default_factory=dict)
    gradients: dict[int, int] = field(default_factory=dict)
    touched: dict[int, int] = field(default_factory=dict)
    update: list[Moment] = field(default_factory=list)
    ended: Moment | None = None
    batches: int = 1
    updated_early: bool = False
    in_forward: bool = False
    recomputed: set[str] = field(default_factory=set)
    step_begun: Moment = field(init=False)

    def __post_init__(self) -> None:
        self.step_begun = self.begun

    def begin_batch(self, now: Moment) -> None:
        """Forget the batch before, which has been through backward."""
        self.begun, self.batches = now, self.batches + 1
        self.updated_early |= bool(self.update)
        for of_batch in (self.calls, self.ready, self.gradients, self.touched):
            of_batch.clear()


def record_tape(job: LiveJob, named: dict[str, nn.Parameter], iteration: int) -> Tape:
    """Run one step under hooks. named: the parameters that are variables, by name."""
    tape = Tape(moment_now(job.device))
    handles = _hooks(job, named, tape)
    try:
        job.run_step(job.model, iteration)
        tape.ended = moment_now(job.device)
    finally:
        for handle in handles:
            handle.remove()
    in_graph = {call.name for call in tape.calls if call.in_graph}
    checkpointed = tape.recomputed - in_graph  # the others without gradients are of a teacher, say
    tape.calls = [c for c in tape.calls if c.in_graph or c.name in checkpointed]
    return tape


def _hooks(job: LiveJob, named: dict[str, nn.Parameter], tape: Tape) -> list[RemovableHandle]:
    index = {id(p): v for v, p in enumerate(named.values())}
    handles: list[Any] = []
    for name, module in job.model.named_modules():
        if any(id(p) in index for p in module.parameters()):
            # also where a checkpoint runs it, within a backward pass or without gradients
            handles.append(
                module.register_forward_pre_hook(lambda *_, name=name: tape.called.add(name))
            )
        own = tuple(index[id(p)] for p in module.parameters(recurse=False) if id(p) in index)
        if own:
            handles += _call_hooks(module, name, own, tape, job.device)

    def on_input(module: nn.Module, args: Any, kwargs: Any) -> None:
        shaped = [tensor for tensor in tensors_in((args, kwargs)) if tensor.dim()]
        if _trains() and tape.gradients:
            tape.begin_batch(moment_now(job.device))
        tape.in_forward |= _trains()
        if _trains() and shaped:
            tape.batch_size = tape.batch_size or int(shaped[0].shape[0])

    def on_end(*_: Any) -> None:
        if _trains():
            tape.forward_ended, tape.in_forward = moment_now(job.device), False

    def on_update(*_: Any) -> None:
        tape.update.append(moment_now(job.device))

    def on_gradient(parameter: Tensor) -> None:
        variable = index[id(parameter)]
        tape.ready.pop(variable, None)
        tape.ready[variable] = moment_now(job.device)
        tape.gradients[variable] = tape.gradients.get(variable, 0) + 1
        if parameter.grad is not None and parameter.grad.is_sparse:
            tape.touched[variable] = int(parameter.grad.coalesce().indices().shape[1])

    handles.append(job.model.register_forward_pre_hook(on_input, with_kwargs=True, prepend=True))
    handles.append(job.model.register_forward_hook(on_end))
    handles += [p.register_post_accumulate_grad_hook(on_gradient) for p in named.values()]
    for optimizer in job.optimizers:
        handles.append(optimizer.register_step_pre_hook(on_update))
        handles.append(optimizer.register_step_post_hook(on_update))
    return handles


def _call_hooks(
    module: nn.Module, name: str, own: tuple[int, ...], tape: Tape, device: torch.device
) -> list[RemovableHandle]:
    """Of a module that owns the variables `own`."""
    module_type = type(module).__name__.lower()
    operation = f"{name}.{module_type}" if name else module_type
    running: list[Call] = []  # calls of this module that have not returned

    def on_call(module: nn.Module, args: Any) -> None:
        if _in_backward() and torch.is_grad_enabled():
            tape.recomputed.add(operation)
        if not _trains(tape):
            return
        rows = 0
        if isinstance(module, nn.Linear) and args and args[0].dim():
            rows = args[0].numel() // max(1, args[0].shape[-1])
        call = Call(operation, module_type, own, rows, moment_now(device))
        call.in_graph = torch.is_grad_enabled()
        tape.calls.append(call)
        running.append(call)

    def on_output(module: nn.Module, args: Any, output: Any) -> None:
        if _trains(tape) and running:
            running.pop().output_bytes = sum(tensor.nbytes for tensor in tensors_in(output))

    return [module.register_forward_pre_hook(on_call), module.register_forward_hook(on_output)]


def _trains(around: Tape | None = None) -> bool:
    """Whether a forward trains: not an evaluation, not recomputed within a backward pass. around:
    of the model's forward, in which a reentrant checkpoint calls modules without gradients, as a
    teacher is called: `record_tape` tells the two apart."""
    trained = torch.is_grad_enabled() or (around is not None and around.in_forward)
    return trained and not _in_backward()


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def add_unused(tape: Tape, variables: int) -> None:
    """Parameters without a gradient count as ready last, with the end of the backward pass."""
    last = next(reversed(tape.ready.values()), tape.forward_ended)
    for variable in range(variables):
        if last is not None:
            tape.ready.setdefault(variable, last)


def refuse_incomplete_step(tape: Tape, names: list[str], takes_unused: bool = False) -> None:
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
    if tape.updated_early:
        raise step_refusal("goes on with another batch behind optimizer.step()")
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
                f"runs {count} backward passes for one forward pass",
                "Give each batch one: add up the losses first.",
            )


def step_refusal(what: str, remedy: str = "") -> InvalidInput:
    usual = "A step is one whole iteration: forward, backward, optimizer.step()."
    return InvalidInput(f"step {what}.", thing="step", value=what, remedy=remedy or usual)


def assign_uncalled_variables(tapes: Sequence[Tape]) -> None:
    """Assign variables that are read without a call of their module (an attention's output
    projection) to the call that owns the variable whose gradient is ready next, or else before."""
    owned = {v for tape in tapes for call in tape.calls for v in call.variables}
    for tape in tapes:
        owner: dict[int, int] = {}
        for index, call in enumerate(tape.calls):
            for variable in call.variables:
                owner.setdefault(variable, index)
        order = list(tape.ready)
        for place, variable in enumerate(order):
            if variable not in owned:
                near = [*order[place + 1 :], *reversed(order[:place])]
                call = tape.calls[next(owner[v] for v in near if v in owner)]
                call.variables = (*call.variables, variable)


def operation_names(tape: Tape) -> list[str]:
    """Of its calls; those of one module are numbered from the second on."""
    counts: Counter[str] = Counter()
    names = []
    for call in tape.calls:
        counts[call.name] += 1
        count = counts[call.name]
        names.append(call.name if count == 1 else f"{call.name}:{count}")
    return names


def finish_order(tape: Tape) -> list[int]:
    """Calls in the order their backward ends.

    A variable's gradient is complete with its first call's backward (backward runs the calls in
    reverse); calls that complete nothing end with the call after them.
    """
    place = {variable: i for i, variable in enumerate(tape.ready)}
    owner: dict[int, int] = {}
    for index, call in enumerate(tape.calls):
        for variable in call.variables:
            owner.setdefault(variable, index)
    ends: dict[int, int] = {}
    last = -1
    for index in reversed(range(len(tape.calls))):
        own = [place[v] for v in tape.calls[index].variables if owner[v] == index]
        ends[index] = last = max(own, default=last)
    return sorted(ends, key=lambda index: (ends[index], -index))


def last_consumers(calls: Sequence[Call], order: Sequence[int]) -> dict[int, int]:
    """Of each variable that is read, the call that comes last in `order`, places in `calls`."""
    found: dict[int, int] = {}
    for index in order:
        found.update(dict.fromkeys(calls[index].variables, index))
    return found
