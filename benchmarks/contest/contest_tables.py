"""Prints the tables of the contest's records.

python -m benchmarks.contest.contest_tables [FOLDER]
"""

import argparse
from pathlib import Path

from benchmarks.contest import RECORDS
from benchmarks.contest.iteration_accounts import accounts_table
from benchmarks.contest.leftover import read_accounts
from benchmarks.contest.live_tables import (
    aims_table,
    competitors_table,
    contest_results,
    domains_table,
    finals_words,
    summary_table,
)
from benchmarks.contest.time_scales import (
    average_words,
    parting_table,
    scale_results,
    scales_table,
)


def contest_tables(folder: Path) -> str:
    """All tables whose records the folder holds, as Markdown."""
    parts: list[str] = []
    if results := contest_results(folder):
        parts += [finals_words(results), summary_table(results), competitors_table(results)]
        parts += [aims_table(results), domains_table(results)]
    if accounts := read_accounts(folder):
        parts.append(accounts_table(accounts))
    if scales := scale_results(folder):
        parts += [scales_table(scales), average_words(scales), parting_table(scales)]
    return "\n\n".join(parts) or f"{folder} holds no records of a contest"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=RECORDS)
    print(contest_tables(parser.parse_args().folder))


if __name__ == "__main__":
    main()
