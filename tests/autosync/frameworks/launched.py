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
