"""Random strategies under the two constraints, drawn by compiled kernels. Imports the space and
facts of the domain, not the designs."""
