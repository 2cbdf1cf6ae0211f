"""One rank's training of a third-party model: under torch's DDP, and under plans."""

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.bundle import Bundle
from autosync.importing.training_step import loss_of, module_arguments
from benchmarks.third_party.all_models import model_named
from benchmarks.third_party.zoo import ThirdPartyModel

STEPS = 3
RATE = 0.01


Difference = tuple[float, str]
"""How far a parameter or buffer is off, and its name."""


def compare(rank: int, world: int, name: str, bundles: dict[str, Bundle]) -> dict[str, Difference]:
    """For each bundle the largest difference from torch's DDP after `STEPS`."""
    chosen = model_named(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _seed(0)
        begun = {name: value.clone() for name, value in chosen.build().state_dict().items()}
        expected = _trained(chosen, rank, _in_ddp(chosen))
        if not _largest_difference(begun, expected)[0]:
            raise AssertionError("three steps changed nothing, so that nothing is compared")
        return {
            kind: _largest_difference(expected, _trained(chosen, rank, _under(bundle)))
            for kind, bundle in bundles.items()
        }


Distribute = Callable[[nn.Module, Any], tuple[nn.Module, Any]]


def _in_ddp(chosen: ThirdPartyModel) -> Distribute:
    def distribute(model: nn.Module, optimizer: Any) -> tuple[nn.Module, Any]:
        return DistributedDataParallel(model, **chosen.ddp), optimizer

    return distribute


def _under(bundle: Bundle) -> Distribute:
    def distribute(model: nn.Module, optimizer: Any) -> tuple[nn.Module, Any]:
        distributed, optimizer = autosync.distribute(model, optimizer, bundle)
        if distributed is not model:
            raise AssertionError("the bundle did not fit, and DDP ran in its place")
        return distributed, optimizer

    return distribute


def _trained(chosen: ThirdPartyModel, rank: int, distribute: Distribute) -> dict[str, Tensor]:
    """Parameters and buffers after the steps."""
    _seed(0)
    model = chosen.build()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    network, optimizer = distribute(model, optimizer)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        inputs = chosen.batch(generator)
        args, keywords = module_arguments(model, inputs, chosen.loss)
        _seed(1000 * step + rank)  # dropout and the like: the same draws under DDP
        optimizer.zero_grad()
        loss_of(network(*args, **keywords), inputs, chosen.loss).backward()
        optimizer.step()
    if network is model:
        autosync.detach(model)
    else:
        for buffer in model.buffers():  # as DDP does before its next forward pass
            dist.broadcast(buffer, 0)
    found = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return found


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)  # some models draw their masks with it
    random.seed(seed)


def _largest_difference(expected: dict[str, Tensor], found: dict[str, Tensor]) -> Difference:
    return max(
        (float((value.double() - expected[name].double()).abs().max()), name)
        for name, value in found.items()
        if value.numel()
    )
