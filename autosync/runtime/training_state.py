"""Model and optimizer as torch.distributed.checkpoint saves and loads them, under any plan."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.attachment import Attachment
from autosync.runtime.hooks.optimizer_coverage import given_optimizers
from autosync.runtime.hooks.torch_compile import compiled_from


class TrainingState:
    """The state of a job of `autosync.distribute`, for torch.distributed.checkpoint::

        state = {"training": autosync.TrainingState(model, optimizer), "epoch": epoch}
        torch.distributed.checkpoint.save(state, checkpoint_id="runs/epoch-3")
        torch.distributed.checkpoint.load(state, checkpoint_id="runs/epoch-3")

    Each rank writes and reads the parts of the optimizer's state that it holds, and nothing is
    gathered. A checkpoint may be loaded under another plan, another number of ranks, torch's DDP or
    `fully_shard`: it is what torch's `get_state_dict` gives, as `model` and `optimizer`.

    optimizer: that of the model, or the list of several.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer]):
        self.model = model
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """With the memory of model and optimizer themselves: copy it, or let
        `torch.distributed.checkpoint.async_save` do so, before the next step. Call it on every
        rank."""
        with self._in_form(in_parts=True):
            model, optimizer = get_state_dict(self.model, given_optimizers(self.optimizer))
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the values that `torch.distributed.checkpoint.load` read into `state_dict()`."""
        with self._in_form(in_parts=True):
            set_state_dict(
                self.model,
                given_optimizers(self.optimizer),
                model_state_dict=state_dict["model"],
                optim_state_dict=state_dict["optimizer"],
            )

    def whole(self, rank: int = 0) -> dict[str, Any]:
        """On one rank `model.state_dict()` and `optimizer.state_dict()`, with what is gathered in
        host memory; nothing on the others, which receive nothing. model: under torch's DDP, what it
        wraps. optimizer: of several, the list of theirs. rank: in the process group of the plan.

        A collective: call it on every rank.

        Raises:
            NotSupported: torch's `fully_shard` holds the model.
        """
        if compiled_from(self.model) in ATTACHED.sharded:
            raise NotSupported(
                "torch's fully_shard holds the model, whose state_dict() is in parts.",
                thing="model",
                value=type(self.model).__name__,
                remedy="Call torch.distributed.checkpoint.state_dict.get_state_dict with "
                "StateDictOptions(full_state_dict=True, cpu_offload=True).",
            )
        with self._in_form(to=rank):
            model = self._given().state_dict()
            states = [one.state_dict() for one in given_optimizers(self.optimizer)]
        if self._rank() != rank:
            return {}
        one = isinstance(self.optimizer, Optimizer)
        return {"model": model, "optimizer": states[0] if one else states}

    def _given(self) -> nn.Module:
        """The model without torch's DDP around it, whose `state_dict()` puts `module.` before each
        name: so plans and DDP load each other's."""
        network = compiled_from(self.model)
        return network.module if isinstance(network, DistributedDataParallel) else self.model

    def _rank(self) -> int:
        """Of this process, in the process group of the plan."""
        if (plan := ATTACHED.plan_of(self.model)) is not None:
            return plan.rank
        ddp = ATTACHED.ddp_around(compiled_from(self.model))
        return dist.get_rank(None if ddp is None else ddp.process_group)

    @contextmanager
    def _in_form(self, in_parts: bool = False, to: int | None = None) -> Iterator[None]:
        plan = ATTACHED.plan_of(self.model)
        if not isinstance(plan, Attachment):  # torch's engines, and plans that lag
            yield
            return
        state = plan.engine.script_state
        state.in_parts, state.to = in_parts, to
        try:
            yield
        finally:
            state.in_parts, state.to = False, None
