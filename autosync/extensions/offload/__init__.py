"""Offloading (GeePS): activations, optimizer state and values move between a device and host
memory, behind compute, within a stated budget."""
