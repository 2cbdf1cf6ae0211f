"""Knobs of NCCL that a strategy states (`autosync.nccl_knobs`)."""
