"""Random strategies under the two constraints, drawn by compiled kernels."""
