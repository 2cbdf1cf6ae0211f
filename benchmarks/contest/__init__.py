"""The contest: AutoSync beside tuned baselines, live on emulated clusters."""

from pathlib import Path

RECORDS = Path(__file__).parent / "records"
"""What benchmarks/contest/README.md shows. The commands go on there, so that a contest may
take days; another folder (`-o`) begins anew."""
