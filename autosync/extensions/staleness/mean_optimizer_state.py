"""One optimizer state of all ranks where each has its own: the mean.

Of an optimizer whose update is linear in the gradient (SGD, with momentum or not) the mean of the
ranks' states is the state of the mean gradient, so nothing is lost; of others it is an average.
"""

import json
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Store
from torch.optim import Optimizer

from autosync.runtime.updates.part_updates import SCALARS

Key = tuple[int, str]
"""A variable's index and the name of a tensor of its state."""


def take_mean_state(
    optimizer: Optimizer,
    parameters: Sequence[nn.Parameter],
    share: float,
    rank: int,
    world: int,
    control: Any,
    store: Store,
) -> None:
    """Give every rank the mean state, by the ranks' shares of the batch; counters of steps become
    the largest. A rank without some tensor counts as zero. A collective.

    control: of all ranks. store: keys for this call alone.
    """
    mine = _tensors(optimizer, parameters)
    facts = [[*key, list(value.shape), str(value.dtype)] for key, value in mine.items()]
    store.set(str(rank), json.dumps(facts))
    known: dict[Key, tuple[tuple[int, ...], torch.dtype]] = {}
    for other in range(world):
        for index, name, shape, dtype in json.loads(store.get(str(other))):
            kind = getattr(torch, dtype.removeprefix("torch."))
            known.setdefault((index, name), (tuple(shape), kind))
    for (index, name), (shape, dtype) in sorted(known.items()):
        own = mine.get((index, name))
        if own is None:
            own = torch.zeros(shape, dtype=dtype, device="cpu")
        options = dist.AllreduceOptions()
        if name in SCALARS or not dtype.is_floating_point:
            options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
            found = own.clone()
        else:
            found = own * share
        control.allreduce([found], options).wait()
        optimizer.state[parameters[index]][name] = found
    if known:  # every rank has come here, so all have read it
        store.delete_key(str(rank))


def _tensors(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> dict[Key, Tensor]:
    return {
        (index, name): value.detach().contiguous()
        for index, parameter in enumerate(parameters)
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }
