"""The contest: AutoSync beside its ablations, replayed, and beside tuned baselines, live."""

from pathlib import Path

RECORDS = Path(__file__).parent / "records"
"""What docs/contest.md shows. The commands go on there, so that a contest may take days; another
folder (`-o`) begins anew."""
