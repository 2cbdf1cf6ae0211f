"""The roofline's seconds over measured ones, by class of operation, on this machine.

    python -m benchmarks.roofline_error [MODEL:BATCH ...] [--device cuda:0] [--iterations N]

Each model's step is measured operation by operation (`measure_profile`) and estimated for the same
device type. `step` is the estimate of a whole pass over the measured one. `within the step` is a
class's share of the estimate over its share of what was measured: what is left of the error where
the step is known (`--step-seconds`). On a CPU the data sheet is an order of magnitude, so that only
the second one tells something. One thread, as a rank of a trial has it.
"""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from autosync.domain import Profile
from autosync.graph import ModelGraph
from autosync.importing import import_module
from autosync.importing.several_examples import moved_examples
from autosync.models import spec_of
from autosync.profiling import LOOKUPS, MATRIX_PRODUCTS, estimate_profile, measure_profile

MODELS = (
    "resnet50:2", "vgg16:1", "densenet121:2", "mobilenet_v2:2", "bert_3l:4", "transformer:2",
    "gpt2:1", "ncf_dense:256",
)  # fmt: skip
NORMALIZATIONS = frozenset({"native_batch_norm", "native_layer_norm", "native_group_norm"})
SOFTMAX = frozenset({"_softmax", "_log_softmax"})
OTHERS = "elementwise and others"
CLASSES: dict[str, frozenset[str]] = {
    "matrix products": MATRIX_PRODUCTS,
    "convolutions": frozenset({"convolution"}),
    "normalizations": NORMALIZATIONS,
    "softmax": SOFTMAX,
    "lookups": LOOKUPS,
}


@dataclass(frozen=True, slots=True)
class ClassError:
    """Of a class of operations. share: of the measured step. ratio: estimated over measured
    seconds. within: the same after the whole step is scaled to the measured one."""

    name: str
    share: float
    ratio: float
    within: float


def class_of(operation_type: str) -> str:
    return next((name for name, types in CLASSES.items() if operation_type in types), OTHERS)


def errors_by_class(
    graph: ModelGraph, measured: Profile, estimated: Profile
) -> tuple[float, list[ClassError]]:
    """The estimate of a whole pass over the measured one, and each class that takes time."""
    real, told = (_by_class(graph, profile) for profile in (measured, estimated))
    step = estimated.compute_seconds / measured.compute_seconds
    found = [
        ClassError(
            name,
            real[name] / measured.compute_seconds,
            told[name] / real[name],
            told[name] / real[name] / step,
        )
        for name in (*CLASSES, OTHERS)
        if real.get(name)
    ]
    return step, found


def _by_class(graph: ModelGraph, profile: Profile) -> dict[str, float]:
    """Forward and backward seconds."""
    sums: dict[str, float] = {}
    seconds = zip(graph.operations, profile.forward_seconds, profile.backward_seconds, strict=True)
    for operation, forward, backward in seconds:
        kind = class_of(operation.type)
        sums[kind] = sums.get(kind, 0.0) + forward + backward
    return sums


def profiles_of(named: str, device: str, iterations: int) -> tuple[ModelGraph, Profile, Profile]:
    """A bundled model's graph, measured and estimated."""
    model, batch = named.split(":")
    torch.manual_seed(0)
    module, inputs, loss = spec_of(model).build(int(batch))
    graph = import_module(module, inputs, loss, name=model, batch_size=int(batch))
    place = torch.device(device)
    module.to(place)
    inputs = moved_examples(inputs, place)
    measured = measure_profile(module, inputs, loss, graph, iterations=iterations, device=device)
    return graph, measured, estimate_profile(graph, measured.device)


def print_errors(named: str, step: float, errors: Iterable[ClassError]) -> None:
    print(f"{named}: step {step:.2f}")
    for each in errors:
        print(
            f"  {each.name:24}{each.share:8.1%} of the step, estimated over measured "
            f"{each.ratio:6.2f}, within the step {each.within:6.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL:BATCH")
    parser.add_argument("--device", default="cpu", help="cpu, or a GPU as torch names it")
    parser.add_argument("--iterations", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for named in options.models:
        graph, measured, estimated = profiles_of(named, options.device, options.iterations)
        print(measured.note)
        print_errors(named, *errors_by_class(graph, measured, estimated))


if __name__ == "__main__":
    main()
