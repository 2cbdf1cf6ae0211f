"""Files of other systems: AutoDist's, ONNX and traces, and lists of hosts (hostfiles, Slurm, Ray,
nvidia-smi).

Everything here reads untrusted bytes: nothing in them is executed, and sizes, depths and counts
are bounded. Imports documents only.
"""

from autosync.errors import InvalidInput


def refused_file(source: str, why: str, remedy: str) -> InvalidInput:
    """source: the file, and the line or item in it. why: without a full stop."""
    return InvalidInput(f"{source}: {why}.", thing=source, value=why, remedy=remedy)
