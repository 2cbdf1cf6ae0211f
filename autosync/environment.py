"""The environment variables that AutoSync reads, all of them, the name of this host, and the
version of this installation."""

import os
import socket
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache

HOST_VARIABLE = "AUTOSYNC_HOST"
"""Names this rank's host where the host name does not."""

DATABASE_URL_VARIABLE = "AUTOSYNC_DATABASE_URL"
"""Of the database, so that its password stands on no command line."""

TOKEN_VARIABLE = "AUTOSYNC_TOKEN"
"""What a client shows to a service: a key, or the operator's token. Of `serve`: that token, or
several with names, NAME:TOKEN,NAME:TOKEN."""

LIMITS_VARIABLE = "AUTOSYNC_LIMITS"
"""What the service lets its clients ask for: NAME=NUMBER, separated by commas."""

PREFIX_VARIABLE = "AUTOSYNC_PREFIX"
"""How launcher `command` reaches a host. With the next two the operator of a worker says how hosts
are reached; a request only names the launcher."""

PYTHON_VARIABLE = "AUTOSYNC_PYTHON"
"""The interpreter on the hosts of launcher `command`."""

RAY_ADDRESS_VARIABLE = "AUTOSYNC_RAY_ADDRESS"
"""Head of the Ray cluster of launcher `ray`."""

SHARE_GPUS_VARIABLE = "AUTOSYNC_SHARE_GPUS"
"""`1` where ranks of trials may share a GPU: the operator of a worker says so."""

PASSED_VARIABLE = "AUTOSYNC_PASS"
"""Further variables that trials get, by name, separated by commas."""

REPEATS_VARIABLE = "AUTOSYNC_REPEATS"
"""How often a disturbed pass is measured again (`trials.pool.process_pool`)."""

ALLOWED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TMPDIR", "TERM", "XDG_*"),
    *("LD_*", "PYTHON*", "VIRTUAL_ENV", "CONDA_*", "MALLOC_*", "COVERAGE_*"),
    *("OMP_*", "MKL_*", "KMP_*", "GOMP_*", "OPENBLAS_*", "NUMBA_*"),
    *("TORCH*", "PYTORCH_*", "TRITON_*", "CUDA_*", "CUBLAS_*", "CUDNN_*", "NVIDIA_*"),
    *("NCCL_*", "GLOO_*", "UCX_*", "FI_*", "SSH_*", "KRB5*", "KUBECONFIG", "SLURM_*"),
    HOST_VARIABLE,
)
"""What Python, torch, its libraries and what reaches a host (ssh, srun, kubectl) read."""

SECRET_WORDS = ("TOKEN", "PASSWORD", "SECRET", "CREDENTIAL", "JWT")
"""A variable with one of them in its name is passed on only where it is named in full."""


def allowed_environment(also: Iterable[str] = ()) -> dict[str, str]:
    """Of this process's environment, what a process that runs trials may have.

    also: further names, or patterns with `*`, for that process alone.
    """
    asked = [name.strip() for name in os.environ.get(PASSED_VARIABLE, "").split(",")]
    wanted = (*also, *asked)
    return {
        name: value
        for name, value in os.environ.items()
        if _fits(name, wanted) or (_fits(name, ALLOWED) and not _is_secret(name))
    }


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_secret(name: str) -> bool:
    return any(word in name.upper() for word in SECRET_WORDS)


def host_name() -> str:
    """The name of this rank's host, by which ranks of one host know each other."""
    return os.environ.get(HOST_VARIABLE) or socket.gethostname()


@cache
def own_version() -> str:
    """Of AutoSync, looked for once among all that is installed; in a clone that is not installed,
    what its pyproject.toml says."""
    import tomllib  # commands that answer at once do not load these
    from importlib import metadata
    from pathlib import Path

    try:
        return metadata.version("autosync")
    except metadata.PackageNotFoundError:
        project = Path(__file__).parents[1] / "pyproject.toml"
        found: str = tomllib.loads(project.read_text())["project"]["version"]
        return found
