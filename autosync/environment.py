"""All environment variables that AutoSync reads, the name of this host, and the version of this
installation."""

import os
import socket
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache

HOST_VARIABLE = "AUTOSYNC_HOST"
"""Replaces the host name of this rank."""

DATABASE_URL_VARIABLE = "AUTOSYNC_DATABASE_URL"
"""URL of the database. On a command line its password would be visible."""

TOKEN_VARIABLE = "AUTOSYNC_TOKEN"
"""For a client: its key, or the operator's token. For `serve`: that token, or several with names,
NAME:TOKEN,NAME:TOKEN."""

LIMITS_VARIABLE = "AUTOSYNC_LIMITS"
"""Limits of the service's clients: NAME=NUMBER, separated by commas."""

PREFIX_VARIABLE = "AUTOSYNC_PREFIX"
"""Prefix by which the launcher `command` reaches a host. The operator of a worker sets this and the
next two; a request only names the launcher."""

PYTHON_VARIABLE = "AUTOSYNC_PYTHON"
"""The interpreter on the hosts of launcher `command`."""

RAY_ADDRESS_VARIABLE = "AUTOSYNC_RAY_ADDRESS"
"""Head of the Ray cluster of launcher `ray`."""

SHARE_GPUS_VARIABLE = "AUTOSYNC_SHARE_GPUS"
"""`1` if ranks of trials may share a GPU. Set by the operator of a worker."""

PASSED_VARIABLE = "AUTOSYNC_PASS"
"""Names of further variables that are passed to trials, separated by commas."""

REPEATS_VARIABLE = "AUTOSYNC_REPEATS"
"""How often a disturbed pass is measured again (`trials.pool.process_pool`)."""

ALLOWED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TMPDIR", "TERM", "XDG_*"),
    *("LD_*", "PYTHON*", "VIRTUAL_ENV", "CONDA_*", "MALLOC_*", "COVERAGE_*"),
    *("OMP_*", "MKL_*", "KMP_*", "GOMP_*", "OPENBLAS_*", "NUMBA_*"),
    *("TORCH*", "PYTORCH_*", "TRITON_*", "CUDA_*", "CUBLAS_*", "CUDNN_*", "NVIDIA_*"),
    *("NCCL_*", "GLOO_*", "UCX_*", "FI_*", "SSH_*", "KRB5*", "KUBECONFIG", "SLURM_*"),
    *("OFI_NCCL_*", "KUBERNETES_*"),
    HOST_VARIABLE,
)
"""Variables that are read by Python, torch, its libraries and programs that reach a host (ssh,
srun, kubectl)."""

SECRET_WORDS = ("TOKEN", "PASSWORD", "SECRET", "CREDENTIAL", "JWT")
"""A variable with one of these words in its name is passed to trials only if AUTOSYNC_PASS has its
full name: a pattern does not take it along."""


def allowed_environment(also: Sequence[str] = ()) -> dict[str, str]:
    """The part of this process's environment that a process running trials gets.

    also: further names, or patterns with `*`, for that process alone, secrets included.
    """
    asked = [name.strip() for name in os.environ.get(PASSED_VARIABLE, "").split(",")]
    return {
        name: value
        for name, value in os.environ.items()
        if _fits(name, also)
        or name in asked
        or (_fits(name, (*ALLOWED, *asked)) and not _is_secret(name))
    }


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_secret(name: str) -> bool:
    return any(word in name.upper() for word in SECRET_WORDS)


def host_name() -> str:
    """The name of this rank's host. Ranks with equal names share a host."""
    return os.environ.get(HOST_VARIABLE) or socket.gethostname()


@cache
def own_version() -> str:
    """The version of AutoSync, looked up once among installed packages, or read from pyproject.toml
    in a clone that is not installed."""
    import tomllib  # commands that answer at once do not load these
    from importlib import metadata
    from pathlib import Path

    try:
        return metadata.version("autosync")
    except metadata.PackageNotFoundError:
        project = Path(__file__).parents[1] / "pyproject.toml"
        found: str = tomllib.loads(project.read_text())["project"]["version"]
        return found
