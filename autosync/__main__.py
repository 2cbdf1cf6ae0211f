"""`autosync` and `python -m autosync`: the command line, where it is installed.

`torchrun -m autosync diagnose ...` runs it on every rank.
"""

import sys

from autosync.extras import failed_import


def run() -> None:
    """The console script. The core alone has no command line, and says how to get it."""
    try:
        from autosync.api.cli.main import run as run_command
    except ImportError as error:
        refusal = failed_import(error)
        if refusal is None:
            raise
        sys.exit(f"Error: {refusal}")
    run_command()


if __name__ == "__main__":
    run()
