"""A batch script for Slurm that tunes on the hosts of its own allocation."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from autosync.errors import InvalidInput

PREFIX = "srun -w {host} -N1 -n1 --overlap --cpu-bind=none"
"""How launcher `command` starts a rank on a host of the allocation. A site may bind
tasks to cores (TaskPluginParam=autobind): the one task of every step would get the same core."""
NOTICE_SECONDS = 60
"""Before the end of its time the job is asked to stop, so that its ranks end in good order."""
HOSTS_FILE = "tune-$SLURM_JOB_ID.yaml"
"""The cluster file that a job writes. Jobs of one folder may run on different hosts at once."""
DATABASE = (
    'export AUTOSYNC_DATABASE_URL="${AUTOSYNC_DATABASE_URL:-sqlite:///autosync-$SLURM_JOB_ID.db}"'
)
"""SQLite in WAL takes processes of one host alone (sqlite.org/wal.html): each job has a file."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """What the script asks Slurm for, and what it runs.

    hosts: the hosts that the job must get, in the cluster file's order; empty where any will do.
    ranks_per_host: of the host with the most. on_gpus: a GPU for each of them. options: further
        options of sbatch, one a line. python: interpreter on the hosts.
    commands: words of `autosync` commands, in turn; the last one takes the place of the script.
    needs_key: whether AUTOSYNC_TOKEN must be set where the job is submitted.
    """

    nodes: int
    ranks_per_host: int
    on_gpus: bool
    python: str
    commands: tuple[tuple[str, ...], ...]
    hosts: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    needs_key: bool = False

    def __post_init__(self) -> None:
        for option in self.options:
            if not option.startswith("-") or not option.isprintable():
                raise InvalidInput(
                    f"{option!r} is no option of sbatch.",
                    thing="--sbatch",
                    value=option,
                    remedy="Write --sbatch=--partition=gpu, once for each option.",
                )


def slurm_script(job: SlurmJob) -> str:
    """The script's text, for `sbatch`."""
    asked = [
        "--job-name=autosync",
        f"--nodes={job.nodes}",
        f"--ntasks-per-node={job.ranks_per_host}",
        *([f"--gpus-per-node={job.ranks_per_host}"] if job.on_gpus else []),
        *([f"--nodelist={','.join(job.hosts)}"] if job.hosts else []),
        "--output=autosync-%j.log",
        f"--signal=B:TERM@{NOTICE_SECONDS}",
        *job.options,  # of an option that is given twice sbatch takes the last one
    ]
    *first, last = (_line(job.python, command) for command in job.commands)
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in asked),
        "# Written by `autosync submit slurm`. The ranks of trials run on the hosts of this job.",
        "set -euo pipefail",
    ]
    if job.needs_key:
        lines.append(': "${AUTOSYNC_TOKEN:?set it to a key of scope worker before sbatch}"')
    else:
        lines.append(DATABASE)
    # exec: the signal before the end goes to the batch shell alone
    return "\n".join([*lines, *first, f"exec {last}", ""])


def _line(python: str, words: Sequence[str]) -> str:
    line = shlex.join([python, "-m", "autosync", *words])
    return line.replace(shlex.quote(HOSTS_FILE), f'"{HOSTS_FILE}"')
