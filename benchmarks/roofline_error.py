"""The roofline's seconds over measured ones, by class of operation, on this machine.

    python -m benchmarks.roofline_error [MODEL:BATCH ...] [--device cuda:0] [--iterations N]
        [--json FILE]

Each model's step is measured operation by operation (`measure_profile`) and estimated for the same
device type. `step` is the estimate of a whole pass over the measured one. `within the step` is a
class's share of the estimate over its share of what was measured: what is left of the error where
the step is known (`--step-seconds`). On a CPU the data sheet is an order of magnitude, so that only
the second one tells something. One thread, as a rank of a trial has it. On a GPU `launch gaps` are
the share of a step in which no kernel runs (torch.profiler), which a roofline knows nothing of.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from autosync.documents import to_data
from autosync.domain import Profile
from autosync.graph import ModelGraph
from autosync.importing import import_module
from autosync.importing.several_examples import moved_examples
from autosync.importing.training_step import loss_of, module_arguments
from autosync.profiling import LOOKUPS, MATRIX_PRODUCTS, estimate_profile, measure_profile
from benchmarks.gpu.ranks import machine_facts
from benchmarks.models import build
from benchmarks.output import option_parser, write_json

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


@dataclass(frozen=True, slots=True)
class Profiles:
    """Of a bundled model. launch_gaps: None on a CPU."""

    graph: ModelGraph
    measured: Profile
    estimated: Profile
    launch_gaps: float | None


def profiles_of(named: str, device: str, iterations: int) -> Profiles:
    model, batch = named.split(":")
    torch.manual_seed(0)
    module, inputs, loss = build(model, int(batch))
    graph = import_module(module, inputs, loss, name=model, batch_size=int(batch))
    place = torch.device(device)
    module.to(place)
    inputs = moved_examples(inputs, place)
    measured = measure_profile(module, inputs, loss, graph, iterations=iterations, device=device)
    gaps = None
    if place.type == "cuda":
        args, keywords = module_arguments(module, inputs, loss)
        gaps = launch_gaps(
            lambda: loss_of(module(*args, **keywords), inputs, loss).backward(),
            iterations,
            measured.compute_seconds,
        )
    return Profiles(graph, measured, estimate_profile(graph, measured.device), gaps)


def launch_gaps(step: Callable[[], object], iterations: int, step_seconds: float) -> float:
    """Share of a step of `step_seconds` in which the GPU runs no kernel."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(iterations):
            step()
        torch.cuda.synchronize()
    busy = 1e-6 * sum(event.self_device_time_total for event in profiled.key_averages())
    share: float = 1.0 - busy / iterations / step_seconds
    return max(0.0, share)


def print_errors(named: str, step: float, gaps: float | None, errors: Iterable[ClassError]) -> None:
    print(f"{named}: step {step:.2f}" + ("" if gaps is None else f", launch gaps {gaps:.0%}"))
    for each in errors:
        print(
            f"  {each.name:24}{each.share:8.1%} of the step, estimated over measured "
            f"{each.ratio:6.2f}, within the step {each.within:6.2f}",
            flush=True,
        )


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL:BATCH")
    parser.add_argument("--device", default="cpu", help="cpu, or a GPU as torch names it")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="measured profiles, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    written: dict[str, Any] = {"machine": machine_facts(), "models": {}}
    for named in options.models:
        found = profiles_of(named, options.device, options.iterations)
        print(found.measured.note)
        step, errors = errors_by_class(found.graph, found.measured, found.estimated)
        print_errors(named, step, found.launch_gaps, errors)
        written["models"][named] = {
            "estimated_over_measured": step,
            "launch_gaps": found.launch_gaps,
            "classes": [asdict(error) for error in errors],
            "profile": to_data(found.measured),
        }
        write_json(options.json, written)


if __name__ == "__main__":
    main()
