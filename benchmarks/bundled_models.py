"""The bundled models: seconds to import each on the meta device, and FLOPs of its step beside those
that torch's own counter counts.

python -m benchmarks.bundled_models [NAME ...]
"""

import sys
import time

import torch
from torch.utils.flop_counter import FlopCounterMode

from autosync.importing.training_step import compute_loss
from autosync.models import BUNDLED, ModelSpec, spec_of
from benchmarks.models import build, import_bundled
from benchmarks.output import print_head, print_row


def torch_flops(spec: ModelSpec, batch_size: int) -> int:
    """Of one forward and backward pass, counted by torch on the meta device."""
    with torch.device("meta"):
        module, inputs, loss = build(spec.name, batch_size)
        with FlopCounterMode(display=False) as counter:
            compute_loss(module, inputs, loss).backward()
    return int(counter.get_total_flops())


def main(names: list[str]) -> None:
    sizes = "model", "batch", "operations", "variables"
    print_head(*sizes, "import s", "GFLOP", "over torch's")
    for spec in map(spec_of, names or list(BUNDLED)):
        start = time.perf_counter()
        graph = import_bundled(spec.name)
        seconds = time.perf_counter() - start
        flops = sum(each.forward_flops + each.backward_flops for each in graph.operations)
        total = torch_flops(spec, spec.batch_size)
        counts = len(graph.operations), len(graph.variables)
        more = f"{flops / 1e9:.1f}", f"{flops / total - 1:.2%}"
        print_row(spec.name, spec.batch_size, *counts, f"{seconds:.2f}", *more)


if __name__ == "__main__":
    main(sys.argv[1:])
