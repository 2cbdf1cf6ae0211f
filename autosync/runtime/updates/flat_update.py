"""Runs the user's own optimizer over a part of its parameters.

A twin of the optimizer shares its class and settings, but holds other parameter groups: some of
the parameters (whole variables), or flat ranges of a bucket (owned and sharded updates).
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.runtime.layout.records import Bucket, VariableRecord

ELEMENTWISE: tuple[type[Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
)
"""Optimizers whose update of an element reads only that element's gradient and state. Exact
classes: a subclass may do anything."""

Group = dict[str, Any]


def check_elementwise(kind: type[Optimizer], variable: str) -> None:
    """Raises NotSupported naming the optimizer when a part of a variable cannot be updated."""
    if kind not in ELEMENTWISE:
        known = ", ".join(known.__name__ for known in ELEMENTWISE)
        raise NotSupported(
            f"the strategy updates a part of variable {variable!r} on its own, which optimizer "
            f"{kind.__name__} does not allow.",
            thing="optimizer",
            value=kind.__name__,
            remedy=f"Use one of {known}, or a strategy without owned or sharded updates.",
        )


def snapshot(optimizer: Optimizer) -> list[Group]:
    """The hyperparameters of every group as they are now; a scheduler may change them next."""
    return [
        {
            key: value.clone() if isinstance(value, Tensor) else value
            for key, value in group.items()
            if key != "params"
        }
        for group in optimizer.__dict__["param_groups"]
    ]


def plain_step(kind: type[Optimizer]) -> Callable[[Optimizer], Any]:
    """The step of a class without torch's wrapper, which runs the hooks: around the script's own
    `step()` they have run."""
    step = kind.step
    plain: Callable[[Optimizer], Any] = step.__wrapped__ if hasattr(step, "hooked") else step  # type: ignore[attr-defined]
    return plain


def twin(kind: type[Optimizer], optimizer: Optimizer, groups: list[Group], state: Any) -> Optimizer:
    """An optimizer of class `kind` with the settings of `optimizer` over other groups."""
    made: Optimizer = object.__new__(kind)
    made.__dict__.update(optimizer.__dict__)
    made.__dict__.pop("step", None)  # a scheduler's wrapper is bound to the original
    made.__dict__["param_groups"] = groups
    made.__dict__["state"] = state
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        made.__dict__[hooks] = OrderedDict()
    return made


def update_parameters(
    kind: type[Optimizer],
    optimizer: Optimizer,
    variables: Sequence[VariableRecord],
    hyper: list[Group],
) -> None:
    """Update whole variables from `parameter.grad`, on the script's own thread."""
    groups = grouped(((v.group, v.parameter) for v in variables), hyper)
    if groups:
        plain_step(kind)(twin(kind, optimizer, groups, optimizer.state))


def update_aliases(
    kind: type[Optimizer],
    optimizer: Optimizer,
    variables: Sequence[VariableRecord],
    hyper: list[Group],
) -> None:
    """Update whole variables from their targets, on a thread of the runtime: the script may
    meanwhile clear or replace `parameter.grad`."""
    state: defaultdict[Tensor, Any] = defaultdict(dict)
    for variable in variables:
        if variable.group >= 0:
            variable.alias.grad = variable.target
            state[variable.alias] = optimizer.state[variable.parameter]
    groups = grouped(((v.group, v.alias) for v in variables), hyper)
    if groups:
        plain_step(kind)(twin(kind, optimizer, groups, state))
    for variable in variables:
        variable.alias.grad = None


def grouped(members: Iterable[tuple[int, Tensor]], hyper: list[Group]) -> list[Group]:
    chosen: dict[int, list[Tensor]] = {}
    for group, tensor in members:
        if group >= 0:
            chosen.setdefault(group, []).append(tensor)
    return [{**hyper[group], "params": tensors} for group, tensors in sorted(chosen.items())]


class FlatUpdate:
    """Updates a range of a bucket in its flat form: an owner's bucket, or a rank's chunk.

    runs: (start, stop, parameter group, variable), each updated or left alone as one.
    The state lives here, in flat tensors; `export_state` and `import_state` translate.
    """

    def __init__(self, kind: type[Optimizer], bucket: Bucket, start: int, stop: int):
        self.kind = kind
        self.bucket = bucket
        self.span = slice(start, stop)
        self.runs: list[tuple[int, int, int, int]] = []
        self.flats: list[Tensor] = []
        self.state: defaultdict[Tensor, Any] = defaultdict(dict)
        for variable, segment, _ in bucket.pieces:
            low, high = max(segment.start, start), min(segment.stop, stop)
            if low < high:
                self._extend(low, high, variable)
        for low, high, _, _ in self.runs:
            flat = torch.zeros_like(bucket.buffer[low:high])
            flat.grad = bucket.buffer[low:high]
            self.flats.append(flat)

    def _extend(self, low: int, high: int, variable: VariableRecord) -> None:
        if self.runs and self.runs[-1][1:] == (low, variable.group, variable.index):
            low = self.runs.pop()[0]
        self.runs.append((low, high, variable.group, variable.index))

    def run(self, optimizer: Optimizer, hyper: list[Group], unused: Callable[[int], bool]) -> None:
        """From reduced gradients in the buffer to new values in the same places; variables that
        no rank used keep theirs."""
        for (low, high, _, _), flat in zip(self.runs, self.flats, strict=True):
            for start, stop, value in self._values(low, high):
                flat[start - low : stop - low].copy_(value)
        groups = grouped(
            (
                (run[2], flat)
                for run, flat in zip(self.runs, self.flats, strict=True)
                if not unused(run[3])
            ),
            hyper,
        )
        if groups:
            plain_step(self.kind)(twin(self.kind, optimizer, groups, self.state))
        for (low, high, _, _), flat in zip(self.runs, self.flats, strict=True):
            self.bucket.buffer[low:high].copy_(flat)

    def gradients(self) -> list[Tensor]:
        return [self.bucket.buffer[low:high] for low, high, _, _ in self.runs]

    def _values(self, low: int, high: int) -> Iterable[tuple[int, int, Tensor]]:
        """The current values of low:high as (start, stop, flat values)."""
        for variable, segment, _ in self.bucket.pieces:
            start, stop = max(low, segment.start), min(high, segment.stop)
            if start < stop:
                part = variable.alias[segment.region].reshape(-1)
                yield start, stop, part[start - segment.start : stop - segment.start]
