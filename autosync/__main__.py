"""`python -m autosync`: the command line, for `torchrun -m autosync diagnose ...`."""

from autosync.api.cli.main import run

if __name__ == "__main__":
    run()
