"""Swaps activations, optimizer state and values between a device and host memory, behind compute,
within a stated budget. Knows torch and the schedule, neither plans nor gradients."""
