"""Profiles measured on this machine's CPU or GPU."""

import re
from statistics import fmean
from typing import TYPE_CHECKING

from autosync.cluster.devices import device_type_of_gpu, gpu_types
from autosync.domain import Profile
from autosync.errors import InvalidInput, NotSupported
from autosync.graph import ModelGraph
from autosync.profiling.roofline import update_seconds

if TYPE_CHECKING:
    import torch
    from torch import nn

    from autosync.importing.several_examples import Examples
    from autosync.importing.training_step import Inputs, Loss


def measure_profile(
    module: "nn.Module",
    example_inputs: "Inputs | Examples",
    loss: "Loss | None",
    graph: ModelGraph,
    *,
    iterations: int = 5,
    device: str = "cpu",
    autocast: "torch.dtype | None" = None,
) -> Profile:
    """Run the step on this machine, whole and operation by operation, after a step to warm up.

    device: the CPU, or a GPU as torch names it (`cuda:0`), where CUDA events measure; module and
        inputs lie there.
    autocast: what the forward pass runs under, and was recorded under (`import_module`).

    The operations' medians are scaled so that they add up to the median whole pass; of several
    examples, each is measured, and an operation's seconds are their mean. Weights, buffers,
    gradients and the random state are left as they were. update_seconds is estimated.

    Raises:
        InvalidInput: the inputs or the module are not those of the graph; iterations below 1.
        NotSupported: the step does not run on the device, torch sees no such GPU, or the GPU is of
            no known type.
    """
    import torch

    from autosync.importing.operation_timing import measure_operations
    from autosync.importing.several_examples import each_example

    if iterations < 1:
        raise InvalidInput(
            f"iterations must be at least 1, got {iterations!r}.",
            thing="iterations",
            value=iterations,
            remedy="Give iterations as a number that is at least 1, or leave it out.",
        )
    place, device_type = torch_device(device), "cpu"
    where = f"this CPU with {torch.get_num_threads()} threads"
    if place.type == "cuda":
        where = torch.cuda.get_device_name(place)
        device_type = _type_of_gpu(where)
    measured = [
        measure_operations(module, example, loss, graph, iterations, place, autocast)
        for example in each_example(example_inputs)
    ]
    forward, backward, spreads = zip(*measured, strict=True)
    shown = f" of each of {len(measured)} example inputs" if len(measured) > 1 else ""
    shown += f" under autocast to {autocast}" if autocast else ""
    return Profile(
        device=device_type,
        batch_size=graph.batch_size,
        forward_seconds=tuple(map(fmean, zip(*forward, strict=True))),
        backward_seconds=tuple(map(fmean, zip(*backward, strict=True))),
        update_seconds=update_seconds(graph, device_type),
        source="measured",
        note=f"median of {iterations} steps{shown} on {where}, torch {torch.__version__}, spread "
        f"{max(spreads):.0%}; update estimated",
        forward_flops=graph.forward_flops,
    )


def _type_of_gpu(name: str) -> str:
    """As `device_type_of_gpu`; what a refusal advises takes a type that the user states."""
    try:
        return device_type_of_gpu(name)
    except NotSupported as error:
        raise NotSupported(
            error.message,
            thing=error.thing,
            value=name,
            remedy="Trace a training with torch.profiler on it, and give `autosync profile MODEL "
            "--trace FILE --device TYPE` the known type that computes most like it; without "
            f"--trace that is an estimate. Known: {', '.join(gpu_types())}.",
        ) from None


def torch_device(name: str) -> "torch.device":
    """The CPU, or a GPU that torch sees.

    Raises:
        InvalidInput: no device of torch's is called so.
        NotSupported: torch sees no such GPU.
    """
    import torch

    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        raise InvalidInput(
            f"no device is called {name[:40]!r}.",
            thing="device",
            value=name,
            remedy="Measure on cpu or cuda:0, or name a device type to estimate for.",
        )
    place = torch.device(name)
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise NotSupported(
            f"torch sees no {name}: it has {torch.cuda.device_count()} GPUs here.",
            thing="device",
            value=name,
            remedy="Estimate with a device type (--device a100), or profile where the GPU is.",
        )
    return place
