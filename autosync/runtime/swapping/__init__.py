"""Swaps activations, optimizer state and values between a device and host memory, behind compute and
within a stated budget. Knows torch and the schedule, neither plans nor gradients."""
