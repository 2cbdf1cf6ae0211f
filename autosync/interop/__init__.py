"""Files of other systems: AutoDist's, ONNX and traces, and lists of hosts (hostfiles, Slurm, Ray,
nvidia-smi).

Everything here reads untrusted bytes: nothing in them is executed, and sizes, depths and counts
are bounded. Imports documents only.
"""
