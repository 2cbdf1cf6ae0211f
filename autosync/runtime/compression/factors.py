"""Sufficient factors (Poseidon, section 3.3): a linear layer's gradient is a product of two thin
matrices, the output's gradient (rows, out) and the activation (rows, in). They travel in place of
the (out, in) product, every rank multiplies those of all ranks, and no rank computes its own.

Replicas stay equal as long as the ranks' matrix products round alike: same library, same kind of
processor.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync.errors import NotSupported
from autosync.plan import Plan
from autosync.runtime.layout.packing import show_view
from autosync.runtime.layout.records import Accumulator, Bucket, NodeHook, VariableRecord
from autosync.runtime.transport.base import Start, Then, Work
from autosync.runtime.transport.process_groups import Groups
from autosync.runtime.transport.ragged import ragged_operation
from autosync.runtime.transport.tensor_exchange import PackedTensors
from autosync.torch_dtypes import TORCH_DTYPES

Take = Callable[[Tensor, Tensor], None]
"""Receives (activations (..., in), output gradients (..., out)) in a backward pass."""

Factors = tuple[Tensor, Tensor]
"""Activations (rows, in) and output gradients (rows, out)."""

TYPES = tuple(TORCH_DTYPES.values())
"""Their places are their codes in a message's header."""


@runtime_checkable
class HandsFactors(Protocol):
    """A module that owns a weight and hands its factors over by itself: where `take` is not None,
    its backward calls it and gives the weight no gradient."""

    def hand_factors(self, take: Take | None) -> None: ...


class FactorCapture:
    """The factors of one weight, from the backward pass to the message.

    Factors count for the backward pass (graph task) that completes the weight's gradient; those
    of passes that failed or asked for other gradients are forgotten.
    """

    def __init__(self, variable: VariableRecord, owner: nn.Module):
        self.variable = variable
        self.packed: Factors = self._none()
        self._owner = owner
        self._accumulator: Accumulator | None = None
        self._taken: list[tuple[int, torch.cuda.Stream | None, Factors]] = []
        self._collected: list[Factors] = []
        self._accumulated_factors: list[Factors] = []
        self._product: Tensor | None = None
        self._version = 0

    def install(self, hook: NodeHook) -> Accumulator:
        """From now on the owner of the weight hands its factors over, and computes no gradient.

        The hook runs when all uses of the weight have been through backward, whether or not a
        gradient came: torch's accumulator of the parameter counts them.
        """
        self._accumulator = Accumulator(self.variable.parameter, hook)
        if isinstance(self._owner, HandsFactors):
            self._owner.hand_factors(self.take)
        else:
            self._owner.forward = MethodType(
                _forward_of(self._owner, self.variable.parameter, self.take), self._owner
            )
        return self._accumulator

    def remove(self) -> None:
        """The owner of the weight computes its gradient again."""
        if self._accumulator is not None:
            self._accumulator.remove()
        if isinstance(self._owner, HandsFactors):
            self._owner.hand_factors(None)
        else:
            self._owner.__dict__.pop("forward", None)

    def take(self, activations: Tensor, gradients: Tensor) -> None:
        """See `Take`."""
        pair = _flat(activations, gradients)
        stream = torch.cuda.current_stream(gradients.device) if gradients.is_cuda else None
        self._taken.append((torch._C._current_graph_task_id(), stream, pair))

    def accumulate(self) -> None:
        """The gradient of a backward pass under `no_sync` is complete: the product joins
        `parameter.grad`, and the factors are kept, since they are fewer."""
        parameter = self.variable.parameter
        before = self._accumulated()
        # A copy: the script may write the next batch to the memory of this one.
        new = _joined([*self._of_this_pass(), self._none()])
        product = self._multiply(new)
        if parameter.grad is None:
            parameter.grad = product
        else:
            parameter.grad.add_(product)
        self._accumulated_factors = [*before, new]
        self._product, self._version = parameter.grad, parameter.grad._version

    def collect(self) -> None:
        """All uses of the weight have been through the backward pass that is running."""
        self._collected = self._of_this_pass()

    def pack(self) -> None:
        """Make what was collected, and what stood there before, what the message carries."""
        self.packed = _joined([*self._accumulated(), *self._collected, self._none()])
        self._accumulated_factors, self._collected, self._product = [], [], None
        show_view(self.variable)  # a whole variable in a bucket of its own type

    def _of_this_pass(self) -> list[Factors]:
        task = torch._C._current_graph_task_id()
        taken, self._taken = self._taken, []
        for of, stream, pair in taken:
            if of == task and stream is not None:
                _follow(stream, pair)
        return [pair for of, _, pair in taken if of == task]

    def _accumulated(self) -> list[Factors]:
        """What stands in `parameter.grad`, as factors: those it was made of, or itself times the
        identity where somebody else wrote it (a second reader of the weight, the script)."""
        gradient = self.variable.parameter.grad
        if gradient is None:
            return []
        if gradient is self._product and gradient._version == self._version:
            return self._accumulated_factors
        if not gradient.any():
            return []
        rows, columns = gradient.shape
        identity = torch.eye(min(rows, columns), dtype=gradient.dtype, device=gradient.device)
        if rows <= columns:
            return [(gradient.clone(), identity)]
        return [(identity, gradient.t().clone(memory_format=torch.contiguous_format))]

    def _multiply(self, factors: Factors) -> Tensor:
        activations, gradients = factors
        product = gradients.t() @ activations
        return product.to(self.variable.parameter.dtype)

    def _none(self) -> Factors:
        weight = self.variable.alias
        rows, columns = weight.shape
        return weight.new_empty(0, columns), weight.new_empty(0, rows)


def _follow(stream: torch.cuda.Stream, factors: Factors) -> None:
    """The current stream reads what was made on another: torch's accumulator, whose hook packs
    factors, stays on the stream it was made on and is behind gradients only."""
    current = torch.cuda.current_stream(stream.device)
    if current != stream:
        current.wait_stream(stream)
        for tensor in factors:
            tensor.record_stream(current)


def _flat(activations: Tensor, gradients: Tensor) -> Factors:
    """One row a sample, in the type of the gradients."""
    columns, rows = activations.shape[-1], gradients.shape[-1]
    return activations.reshape(-1, columns).to(gradients.dtype), gradients.reshape(-1, rows)


def _joined(factors: list[Factors]) -> Factors:
    """All rows, in the type of those there are: the last entry is empty and has the weight's."""
    filled = [pair for pair in factors if len(pair[0])] or factors[-1:]
    dtype = filled[0][1].dtype
    for _, gradients in filled:
        dtype = torch.promote_types(dtype, gradients.dtype)
    return (
        torch.cat([activations.to(dtype) for activations, _ in filled]),
        torch.cat([gradients.to(dtype) for _, gradients in filled]),
    )


class _Linear(torch.autograd.Function):
    """A linear layer whose weight gets no gradient where a backward pass would add it up: `take`
    gets its factors. `torch.autograd.grad` gets its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, take: Take) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.take = take
        ctx.bias_dtype = bias.dtype if bias is not None else None
        flat = functional.linear(x.reshape(-1, x.shape[-1]), weight, bias)
        # No view: the next module may work in place.
        out: Tensor = torch.ops.aten._unsafe_view(flat, (*x.shape[:-1], weight.shape[0]))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        to_x = to_weight = to_bias = None
        if wants_x:
            to_x = (gradient @ weight.to(gradient.dtype)).to(x.dtype)
        if wants_bias:
            to_bias = gradient.reshape(-1, gradient.shape[-1]).sum(0).to(ctx.bias_dtype)
        if wants_weight:
            adds_up = _adds_up(ctx)
            if adds_up:
                ctx.take(x, gradient)
            elif adds_up is None:
                activations, gradients = _flat(x, gradient)
                to_weight = (gradients.t() @ activations).to(weight.dtype)
        return to_x, to_weight, to_bias, None


def _adds_up(ctx: Any) -> bool | None:
    """Whether the backward pass that runs adds the weight's gradient up. None where
    torch.autograd.grad asks for the gradient itself: torch answers by an error then."""
    try:
        return torch._C._will_engine_execute_node(ctx.next_functions[1][0])
    except RuntimeError:
        return None


# Compiled regions break here, as at `hooks.torch_compile.opaque`. The context that the compiler
# traces with has no `next_functions`: it would leave all of the function around the layer eager.
_adds_up._torchdynamo_disable = True  # type: ignore[attr-defined]


def _forward_of(
    owner: nn.Module, weight: nn.Parameter, take: Take
) -> Callable[[nn.Linear, Tensor], Tensor]:
    def forward(self: nn.Linear, x: Tensor) -> Tensor:
        is_own = self is owner and self._parameters.get("weight") is weight
        if not is_own or not torch.is_grad_enabled():  # a copy, a parametrization, an evaluation
            return functional.linear(x, self.weight, self.bias)
        out: Tensor = _Linear.apply(x, self.weight, self.bias, take)  # type: ignore[no-untyped-call]
        return out

    return forward


def owner_of(model: nn.Module, variable: VariableRecord) -> nn.Module:
    """The module whose weight the variable is.

    Raises:
        NotSupported: the weight is shared, belongs to no plain nn.Linear, or has a hook.
    """
    check_unhooked(variable)
    owners = [
        (module, name)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter is variable.parameter
    ]
    if len(owners) != 1:
        raise _refusal(variable, f"is shared by {len(owners)} modules")
    module, name = owners[0]
    if isinstance(module, HandsFactors):
        return module
    if type(module) is not nn.Linear or name != "weight":
        raise _refusal(variable, f"belongs to a {type(module).__name__}, not to a plain nn.Linear")
    if "forward" in module.__dict__:
        raise _refusal(variable, "belongs to a module whose forward was replaced")
    return module


def check_unhooked(variable: VariableRecord) -> None:
    """Raises NotSupported where the script has hooked the gradient: autograd never has one, so it
    calls no hook, or calls it with None."""
    parameter = variable.parameter
    if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
        raise _refusal(variable, "has a hook of its gradient, which no rank computes")


def _refusal(variable: VariableRecord, why: str) -> NotSupported:
    return NotSupported(
        f"variable {variable.name!r} {why}, so its gradient cannot be sent as factors.",
        thing=f"variable {variable.name}",
        value="factors",
        remedy="Use all_reduce for it, or tune with factors left out of the space.",
    )


def factor_message(plan: Plan, index: int, bucket: Bucket, groups: Groups, queue: str) -> Start:
    """What starts a message of factors: afterwards the buffer holds the share-weighted sum."""
    operation = ragged_operation(plan, index, groups, queue)
    team = plan.team_of(plan.messages[index], groups.rank)
    shares = [plan.shares[rank] for rank in team]
    captures = [variable.packer for variable in bucket.variables]

    def start() -> Work:
        mine = [capture.packed for capture in captures if isinstance(capture, FactorCapture)]
        counts = [number for _, g in mine for number in (len(g), TYPES.index(g.dtype))]
        work = operation.start(counts, [tensor for pair in mine for tensor in pair])
        bucket.payload_bytes = work.sent_bytes

        def multiply() -> None:
            arrived = {**work.received, operation.place: work.own}
            everyone = [_read(bucket, *arrived[member]) for member in range(operation.members)]
            for number, (_, _, view) in enumerate(bucket.pieces):
                _sum_products([factors[number] for factors in everyone], shares, view)

        return Then(multiply, work)

    return start


def _read(bucket: Bucket, counts: list[int], reader: PackedTensors) -> list[Factors]:
    found = []
    for (_, _, view), rows, code in zip(bucket.pieces, counts[::2], counts[1::2], strict=True):
        outs, ins = view.shape
        activations = reader.take((rows, ins), TYPES[code]).to(view)
        found.append((activations, reader.take((rows, outs), TYPES[code]).to(view)))
    return found


def _sum_products(factors: list[Factors], shares: list[float], out: Tensor) -> None:
    """One product over the rows of all ranks, so that every rank rounds alike."""
    activations = torch.cat([a for a, _ in factors])
    gradients = torch.cat([g * share for (_, g), share in zip(factors, shares, strict=True)])
    torch.mm(gradients.t(), activations, out=out)
