"""FLOPs of each bundled model's step beside those that torch's own counter counts.

python -m benchmarks.model_flops [NAME ...]
"""

import sys

import torch
from torch.utils.flop_counter import FlopCounterMode

from autosync.importing.training_step import compute_loss
from autosync.models import BUNDLED, ModelSpec, bundled, spec_of
from benchmarks.models import build


def torch_flops(spec: ModelSpec, batch_size: int) -> int:
    """Of one forward and backward pass, counted by torch on the meta device."""
    with torch.device("meta"):
        module, inputs, loss = build(spec.name, batch_size)
        with FlopCounterMode(display=False) as counter:
            compute_loss(module, inputs, loss).backward()
    return int(counter.get_total_flops())


def main(names: list[str]) -> None:
    print("| model | batch | forward GFLOP | backward GFLOP | torch's total | difference |")
    print("|---|---|---|---|---|---|")
    for spec in map(spec_of, names or list(BUNDLED)):
        graph = bundled(spec.name)
        forward = sum(operation.forward_flops for operation in graph.operations)
        backward = sum(operation.backward_flops for operation in graph.operations)
        total = torch_flops(spec, spec.batch_size)
        print(
            f"| {spec.name} | {spec.batch_size} | {forward / 1e9:.1f} | {backward / 1e9:.1f} "
            f"| {total / 1e9:.1f} | {(forward + backward) / total - 1:.2%} |",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
