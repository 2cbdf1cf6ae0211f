"""Names of launchers and kinds of compute in commands and requests, and phrases of results. This
module imports nothing, so that the command line starts quickly."""

from typing import Literal

LauncherName = Literal["auto", "testbed", "local", "command", "ray"]

REAL_CLUSTERS = frozenset({"command", "ray"})
"""Launchers whose links are the cluster's own: nothing is scaled unless it is asked for."""

ComputeKind = Literal["waited", "kernels"]
"""What stands for the model's compute in a replay; see `contract.Workload`."""

ComputeDevice = Literal["cpu", "cuda"]

BackendName = Literal["gloo", "nccl"]
"""As `autosync.cluster.Backend`."""

PREDICTED_WAITS = "waits for swapped tensors as predicted"
"""In the description of a trial that swapped nothing, though its strategy does."""

SHORT_OF_CORES = "short of cores"
"""In a testbed's description, where a rank has fewer cores of this machine than hosts have for each
GPU (`scales.CORES_A_RANK`)."""

UNSHAPED = "unshaped links"
"""In the description of a launcher whose links run at whatever speed this machine has."""

GPU_BY_MPS = "share a GPU by CUDA MPS"
GPU_IN_TURNS = "share a GPU in turns"
"""In the description of a pool whose ranks share a GPU."""

FAILURES = {
    "out_of_memory": "ran out of memory",
    "over_budget": "did not fit its swap budget",
    "timeout": "took too long",
    "crashed": "failed",
    "refused": "was refused",
    "cancelled": "was cancelled",
}
"""What happened to a strategy in its trial, by `contract.ErrorKind`."""
