"""torch.compile with torch's DDP, in each way that torch has: baselines of compiled models.

One region is compiled whole, so that all gradients are there at its end. DDPOptimizer cuts the
graph by the buckets. Compiled autograd traces the backward pass with its all-reduces, which
inductor then fuses by the size of DDP's buckets and moves; its two further passes reorder
collectives beside compute, or bucket and schedule them by their estimated times.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo.config
import torch._inductor.config
from torch import Tensor, nn

from autosync.trials.session import TrialAttachment

OVERLAP = "aten_distributed_optimizations"
REORDERING = ("reorder_compute_for_overlap", "sink_waits", "raise_comms")
"""Passes of inductor: its default up to torch 2.8."""
COMPILED_AUTOGRAD: dict[str, object] = {"optimize_ddp": "python_reducer", "compiled_autograd": True}


@dataclass(frozen=True, slots=True)
class CompiledDdp:
    """dynamo, inductor: by name, settings of `torch._dynamo.config` and `torch._inductor.config`,
    which have to be in force where DDP is made and where it trains."""

    name: str
    dynamo: Mapping[str, object]
    inductor: Mapping[str, object] = field(default_factory=dict)

    def lacks(self) -> str:
        """A setting that this torch does not have; empty where it has them all."""
        names = [f"torch._dynamo.config.{name}" for name in self.dynamo]
        names += [f"torch._inductor.config.{name}" for name in self.inductor]
        return next((name for name in names if not _exists(name)), "")

    @contextmanager
    def in_force(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch._dynamo.config.patch(dict(self.dynamo)))
            if self.inductor:
                stack.enter_context(torch._inductor.config.patch(dict(self.inductor)))
            yield

    def passes(self, ddp: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Callable[[], None]:
        """What runs forward and backward. loss: of a network. Made, and called, within
        `in_force`."""
        if "compiled_autograd" in self.dynamo:

            def both() -> None:
                loss(ddp).backward()

            compiled: Callable[[], None] = torch.compile(both)
            return compiled
        network: Any = torch.compile(ddp)
        return lambda: loss(network).backward()


WAYS = (
    CompiledDdp("DDP, DDPOptimizer", {"optimize_ddp": True}),
    CompiledDdp("DDP, one region", {"optimize_ddp": False}),
    CompiledDdp("DDP, compiled autograd", COMPILED_AUTOGRAD),
    CompiledDdp(
        "DDP, reordered",
        COMPILED_AUTOGRAD,
        {
            "reorder_for_compute_comm_overlap": True,
            "reorder_for_compute_comm_overlap_passes": [*REORDERING],
        },
    ),
    CompiledDdp(
        "DDP, overlap scheduling",
        COMPILED_AUTOGRAD,
        {
            f"{OVERLAP}.enable_overlap_scheduling": True,
            f"{OVERLAP}.collective_bucketing": True,
            "_fuse_ddp_communication": False,
        },
    ),
)


@dataclass(slots=True)
class Training:
    """One way's model and what an iteration does with it. setting: of torch's compiler."""

    attached: TrialAttachment
    optimizer: torch.optim.Optimizer
    passes: Callable[[], None]
    setting: CompiledDdp | None = None

    def train(self, iterations: int = 1) -> None:
        with self.setting.in_force() if self.setting else nullcontext():
            for _ in range(iterations):
                self.optimizer.zero_grad(set_to_none=True)
                self.passes()
                self.optimizer.step()


def not_attached(network: nn.Module) -> TrialAttachment:
    """Of what detaches by itself."""
    return TrialAttachment(network, lambda: None, lambda: None)


def compiled_trainings(
    made: Callable[[], tuple[nn.Module, torch.optim.Optimizer]],
    in_ddp: Callable[[nn.Module], nn.Module],
    loss: Callable[[nn.Module], Tensor],
    iterations: int,
    may_begin: Callable[[], bool] = lambda: True,
) -> tuple[dict[str, Training], dict[str, str]]:
    """Each of WAYS after its first iterations, and why others are left out."""
    found: dict[str, Training] = {}
    left_out: dict[str, str] = {}
    for setting in WAYS:
        if lacking := setting.lacks():
            left_out[setting.name] = f"this torch has no {lacking}"
            continue
        if not may_begin():
            left_out[setting.name] = "no time was left"
            continue
        model, optimizer = made()
        with setting.in_force():
            ddp = in_ddp(model)
            passes = setting.passes(ddp, loss)
        training = Training(not_attached(ddp), optimizer, passes, setting)
        try:
            training.train(iterations)
        except RuntimeError as error:  # of the compiler, on every rank alike
            left_out[setting.name] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        found[setting.name] = training
    return found, left_out


def _exists(name: str) -> bool:
    found: object = torch
    for part in name.split(".")[1:]:
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True
