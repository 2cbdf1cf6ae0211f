"""Traces as torch.profiler writes them, made of a few events."""

from typing import Any


def event(kind: str, name: str, begin_us: float, end_us: float, **args: Any) -> dict[str, Any]:
    times = {"ts": begin_us, "dur": end_us - begin_us}
    return {"ph": "X", "cat": kind, "name": name, **times, "args": args}


def trace(rank: int, events: list[dict[str, Any]], host: str = "a") -> dict[str, Any]:
    job = {"rank": rank, "backend": "gloo", "world_size": 2}
    return {"traceEvents": events, "host_name": host, "distributedInfo": job}


def gloo_step(
    rank: int, issued_us: float, end_us: float, at_us: float = 0.0, host: str = "a"
) -> dict[str, Any]:
    """An iteration of 1,000 us: 400 us of compute, then one all-reduce of 4,000 bytes that the rank
    issues at `issued_us`, until `end_us`; 100 us of input before. at_us: added to all."""
    summed = {"Input Dims": [[1000]], "Input type": ["float"]}
    events = [
        event("user_annotation", "ProfilerStep#0", 0, 1000),
        event("user_annotation", "enumerate(DataLoader)#x.__next__", 0, 100),
        event("cpu_op", "aten::mm", 100, 400),
        event("cpu_op", "aten::empty", 150, 200),  # within the other
        event("cpu_op", "AddmmBackward0", 100, 900),  # encloses others
        event("cpu_op", "aten::add", 420, 520),
        event("cpu_op", "c10d::allreduce_", issued_us, issued_us + 10),
        event("user_annotation", "gloo:all_reduce", issued_us + 5, end_us, **summed),
    ]
    moved = [{**each, "ts": each["ts"] + at_us} for each in events]
    return trace(rank, moved, host)


def nccl_step(rank: int) -> dict[str, Any]:
    """An iteration of 1,000 us on a GPU: compute to 600, an all-reduce from 500 to 900."""
    stated = {
        "Collective name": "allreduce",
        "In msg nelems": 1000,
        "Out msg nelems": 1000,
        "dtype": "BFloat16",
    }
    events = [
        event("user_annotation", "ProfilerStep#3", 0, 1000),
        event("cpu_op", "aten::mm", 0, 900),
        event("kernel", "ampere_bf16_gemm", 50, 600),
        event("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 500, 900, **stated),
    ]
    return trace(rank, events)
