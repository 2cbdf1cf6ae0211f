"""Stand-ins for Slurm's commands, made of bash: all hosts are this machine."""

import os
from pathlib import Path

NODELIST = "127.0.0.[1-2]"
"""Two hosts that are this machine under two of its names."""
SBATCH = """#!/bin/bash
# Checks what is asked for, and runs the script with a job's variables.
asked() { sed -n "s/^#SBATCH --$1=//p" "$2" | tail -1; }
[ "$(asked nodes "$1")" = 2 ] || { echo "sbatch: error: there are 2 nodes" >&2; exit 1; }
want=$(asked nodelist "$1")
[ -z "$want" ] || [ "$want" = 127.0.0.1,127.0.0.2 ] || { echo "no such nodes" >&2; exit 1; }
export SLURM_JOB_ID=7 SLURM_JOB_NODELIST="HOSTS"
export SLURM_TASKS_PER_NODE="$(asked ntasks-per-node "$1")(x2)"
exec bash "$1"
""".replace("HOSTS", NODELIST)
SRUN = """#!/bin/bash
# srun -w HOST -N1 -n1 --overlap --cpu-bind=none COMMAND...: notes the host, and runs the command.
[ -n "$SLURM_JOB_ID" ] || { echo "srun: error: no allocation" >&2; exit 1; }
while [ $# -gt 0 ]; do
  case $1 in
    -w) echo "$2" >> "$(dirname "$0")/hosts"; shift 2 ;;
    -N1 | -n1 | --overlap | --cpu-bind=none) shift ;;
    -*) echo "srun: error: unknown option $1" >&2; exit 1 ;;
    *) break ;;
  esac
done
exec "$@"
"""


def put_slurm(folder: Path) -> dict[str, str]:
    """Writes the commands; the environment in which they are found."""
    programs = folder / "slurm"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}"}


def hosts_of_ranks(folder: Path) -> set[str]:
    """On which `srun` started something."""
    return set((folder / "slurm" / "hosts").read_text().split())
