"""Profiles: measured on this machine's CPU or GPU, estimated from a device's data sheet, scaled
to a step time the user knows, or fitted to profiles at several batch sizes."""

from autosync.profiling.batch_sizes import (
    profile_at_batch,
)
from autosync.profiling.measured_profile import (
    measure_profile,
    torch_device,
)
from autosync.profiling.roofline import (
    EFFICIENCY,
    LAUNCH_SECONDS,
    LOOKUPS,
    MATRIX_PRODUCTS,
    backward_bytes,
    estimate_profile,
    forward_bytes,
    profile_from_step_seconds,
    reach_variables,
    takes_winograd,
    update_seconds,
)

__all__ = [
    "EFFICIENCY",
    "LAUNCH_SECONDS",
    "LOOKUPS",
    "MATRIX_PRODUCTS",
    "backward_bytes",
    "estimate_profile",
    "forward_bytes",
    "measure_profile",
    "profile_at_batch",
    "profile_from_step_seconds",
    "reach_variables",
    "takes_winograd",
    "torch_device",
    "update_seconds",
]
