"""`autosync.diagnose` on ranks of this machine, and the profiler's traces that it reads.

    python -m benchmarks.gpu.diagnosed [MODEL:BATCH] [--ranks 2] [--device cuda] [--backend nccl]
        [--folder DIR]

Under FSDP2 without predictions, and under torch's DDP with them. `diagnosis-WRAP.json` and `.html`
are the pages; `trace-WRAP-RANK.json.gz` is what torch.profiler exports of two iterations, for
`autosync diagnose --trace`.
"""

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from autosync import diagnose
from autosync.importing.several_examples import moved_examples
from autosync.importing.training_step import loss_of, module_arguments
from autosync.interop.training_traces import STEP
from benchmarks.gpu.ranks import on_ranks
from benchmarks.models import build
from benchmarks.output import option_parser

WRAPS = ("fsdp2", "ddp")
TRACED = 2
"""Iterations of a trace that is kept."""


def diagnosed(
    rank: int, world: int, device: torch.device, named: str, wrap: str, folder: str
) -> tuple[str, float]:
    """The page as text, and the seconds that it took."""
    os.environ.pop("AUTOSYNC_HOST", None)  # the ranks are of one host
    model, _, batch = named.partition(":")
    torch.manual_seed(0)
    module, inputs, loss = build(model, int(batch))
    module.to(device)
    inputs = moved_examples(inputs, device)
    args, keywords = module_arguments(module, inputs, loss)
    network = wrapped(module, wrap)
    optimizer = torch.optim.SGD(network.parameters(), 1e-4, momentum=0.9)

    def step(network: nn.Module, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(network(*args, **keywords), inputs, loss).backward()
        optimizer.step()

    page = Path(folder) / f"diagnosis-{wrap}.html"
    begun = time.monotonic()
    found = diagnose(
        step,
        network,
        optimizer,
        predict=wrap == "ddp",
        save=page,
        on_progress=lambda what: print(f"{time.monotonic() - begun:5.1f} s: {what}", flush=True),
    )
    took = time.monotonic() - begun
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] * (device.type == "cuda"))]
    with profile(activities=activities, record_shapes=True) as recorded:
        for number in range(TRACED):
            with record_function(f"{STEP}{number}"):
                step(network, optimizer)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
    recorded.export_chrome_trace(str(Path(folder) / f"trace-{wrap}-{rank}.json.gz"))
    if rank == 0:
        page.with_suffix(".json").write_text(found.to_json())
    return found.to_text(), took


def wrapped(module: nn.Module, wrap: str) -> nn.Module:
    if wrap == "ddp":
        return DistributedDataParallel(module)
    from torch.distributed.fsdp import fully_shard

    for block in module.children():
        if any(True for _ in block.parameters()):
            fully_shard(block)
    fully_shard(module)
    return module


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("model", nargs="?", default="resnet50:32", metavar="MODEL:BATCH")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--backend", default="nccl", choices=("gloo", "nccl"))
    parser.add_argument("--folder", type=Path, default=Path("diagnosis"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for wrap in WRAPS:
        given = (options.model, wrap, str(options.folder.resolve()))
        text, took = on_ranks(options.ranks, options.device, options.backend, diagnosed, *given)[0]
        print(f"{wrap}, {took:.1f} s:\n{text}\n", flush=True)


if __name__ == "__main__":
    main()
