"""The contest: AutoSync beside tuned baselines, live on emulated clusters."""

from pathlib import Path

RECORDS = Path(__file__).parent / "records"
"""What benchmarks/contest/README.md shows. The commands go on there, so that a contest may
take days; another folder (`-o`) begins anew."""
FIXED_RECORDS = RECORDS / "fixed_in_advance"
"""Of the domains on which no setting was chosen (`domains.FIXED`)."""
