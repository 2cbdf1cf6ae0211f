"""The environment that a launcher such as torchrun gives to a rank, for a rank of the tests."""

import os


def as_launched(rank: int, world: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "AUTOSYNC_HOST": f"host{rank}",
    }


def as_torchrun(rank: int, world: int) -> None:
    """What Lightning recognises torchrun by."""
    as_launched(rank, world)
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "test",
        "GROUP_RANK": "0",
        "MASTER_PORT": "1",  # the ranks have met already
    }


def with_fresh_accelerate(rank: int, world: int) -> None:
    """Accelerate keeps its state for the life of a process; it begins anew."""
    as_launched(rank, world)
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
