"""What making the network leaves outside of the process."""

import os
import subprocess
import sys
from pathlib import Path

MAKES = """
from autosync.simulator.learned.networks.gat_network import GatNetwork
import sys
GatNetwork(4, 3), GatNetwork(4, 3)
print(sum(name.startswith("torch_geometric.nn.conv.gat_conv_GATConv_") for name in sys.modules))
"""


def test_generated_modules_leave_no_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAKES],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) > 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
