"""Training scripts of these tests under torchrun, as users start theirs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def seen_by_ranks(script: str, ranks: int, out: Path, *arguments: str) -> list[dict[str, Any]]:
    """What each rank of `script`, a file beside this one, wrote to `out`."""
    job = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks), "--log-dir", str(out / "logs")),
            *(str(Path(__file__).parent / script), str(out), *arguments),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert job.returncode == 0, job.stderr[-6000:]
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(ranks)]
