"""Calls of operators as a trace tells them, whatever wrote it."""

from dataclasses import dataclass, field

BACKWARD = "autograd::engine::evaluate_function"
"""How the calls begin that run autograd's nodes."""
STEP = "ProfilerStep#"
"""How the marks of `prof.step()` begin."""


@dataclass(slots=True)
class TracedCall:
    """One call on the CPU. host_seconds: of the call, those below it included. sequence: of the
    autograd node that it makes, or runs; None without. own_kernel_seconds: of the kernels that it
    launches itself, not within a call below."""

    name: str
    host_seconds: float
    sequence: int | None = None
    own_kernel_seconds: float = 0.0
    below: "list[TracedCall]" = field(default_factory=list)

    def seconds(self, by_kernels: bool) -> float:
        """Of its kernels where the trace has any, else of the call."""
        if not by_kernels:
            return self.host_seconds
        waiting, total = [self], 0.0
        while waiting:
            call = waiting.pop()
            total += call.own_kernel_seconds
            waiting += call.below
        return total


@dataclass(frozen=True, slots=True)
class TracedSteps:
    """steps: the calls of each profiled step that no other call encloses, in the order they began.
    by_kernels: whether a device's kernels were traced. device: its name, where the trace says it.
    whole_backward: whether every autograd node that ran is in it.
    """

    steps: tuple[tuple[TracedCall, ...], ...]
    by_kernels: bool
    device: str = ""
    whole_backward: bool = True
