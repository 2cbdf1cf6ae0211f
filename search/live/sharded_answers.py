"""`autosync.tune` in the space `fsdp2`: what can be tried beside a running job's model, and what
becomes of an answer that shards its parameters."""

from collections.abc import Sequence
from pathlib import Path

from torch.optim import Optimizer

from autosync.bundle import Bundle
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.runtime.updates.optimizers import has_begun
from autosync.simulator.memory.memory_check import most_peak_bytes
from autosync.simulator.memory.peak_memory import device_memory_bytes
from autosync.strategy_description import describe, script_lines


def check_untrained(optimizers: Sequence[Optimizer]) -> None:
    """Raises InvalidInput where an optimizer has stepped, so that `fully_shard` would come too late
    for this run, and its answer is to be saved nowhere."""
    for one in optimizers:
        if has_begun(one):
            raise InvalidInput(
                f"the optimizer ({type(one).__name__}) has stepped, so only the next run can use "
                "what the space fsdp2 answers, and save is None.",
                thing="save",
                value=None,
                remedy='Give save="best.json", or tune before the first step.',
            )


def no_room_beside_values(domain: Domain, bundle: Bundle) -> str:
    """Why the devices cannot hold a sharded copy beside the job's own values; empty where they
    can."""
    if bundle.strategy.engine is None:
        return ""
    device_bytes = float(device_memory_bytes(domain).min())
    own_bytes = domain.graph.size_bytes
    (peak_bytes,) = most_peak_bytes(domain, [bundle.strategy])
    if peak_bytes + own_bytes <= device_bytes:
        return ""
    return (
        f"a device has {device_bytes / 1e9:.3g} GB, and the trial takes "
        f"{(peak_bytes + own_bytes) / 1e9:.3g} GB: {peak_bytes / 1e9:.3g} for what is tried, "
        f"{own_bytes / 1e9:.3g} for the values of the job's own model. Measure it in a job of its "
        "own: autosync tune --space fsdp2."
    )


def why_next_run(answer: Bundle, save: str | Path | None) -> str:
    """What the answer is, why a job that has begun to train goes on without it, and what to do.
    save: rank 0's."""
    evidence, measured = answer.evidence, []
    if evidence.step_seconds:
        measured.append(f"{evidence.step_seconds * 1e3:.4g} ms an iteration")
    if evidence.ddp_step_seconds:
        measured.append(f"torch's DDP {evidence.ddp_step_seconds * 1e3:.4g} ms")
    elif evidence.step_seconds:  # else it is what the others are compared with
        measured.append("torch's DDP ran out of memory")
    words = f" ({', '.join(measured)})" if measured else ""
    line = script_lines(answer.strategy, str(save))[1]
    return (
        f"the answer is {describe(answer.strategy)}{words}. A job that has begun to train "
        "cannot take on a sharding, so it goes on under torch's DDP. Save a checkpoint by "
        f"autosync.TrainingState; in the next run say `{line}` before the first step, and load the "
        "checkpoint behind it, by autosync.TrainingState again."
    )
