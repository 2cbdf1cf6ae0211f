"""What the runtime leaves on the table: where the time between the best measured iteration of a
domain and its limit goes.

    python -m benchmarks.contest.leftover [--domains resnet50-4x1 ...] [--repeats 5]
        [-o FOLDER] [--strategy BUNDLE.json]

Takes the best strategy of the live contest's finals that tells its messages (torch's DDP does not)
and records it a few times on the same testbed; the iteration of median length counts. Leave the
machine alone meanwhile. What is done is a file of FOLDER and is not done again; the page is written
by benchmarks.contest.contest_tables.

--strategy: a bundle's strategy instead, for one domain.
"""

import argparse
import sys
from pathlib import Path

from autosync.bundle import load_bundle, make_bundle
from autosync.documents import from_json, to_json
from autosync.domain import Domain
from autosync.errors import AutosyncError
from autosync.search.collect.collection_plan import CollectionTarget
from autosync.search.loop.tuning_store import Proposal
from autosync.simulator.limit import iteration_limit
from autosync.strategy import Strategy
from autosync.trials.contract import TrialRequest, Workload
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from benchmarks.contest import RECORDS
from benchmarks.contest.contest_ring import PLAN
from benchmarks.contest.iteration_accounts import (
    IterationAccounts,
    accounts_table,
    iteration_accounts,
    median_accounts,
)
from benchmarks.contest.live_contest import prepared
from benchmarks.contest.live_domains import DOMAINS, domain_named
from benchmarks.contest.live_records import ContestFile, stored_strategies, whole_lines
from benchmarks.contest.live_tables import final_seconds
from benchmarks.contest.tuned_competitors import COMPETITORS

REPEATS = 5


def best_strategy(folder: Path, given: CollectionTarget, domain: Domain) -> Strategy | None:
    """The fastest of the finals that the runtime itself ran; None without finals."""
    file = ContestFile.opened(folder, given.name)
    medians = {
        key: sorted(seconds.values())[len(seconds) // 2]
        for key, seconds in final_seconds(file.rows).items()
    }
    strategies = {
        f"{PLAN}:{each.id}": each
        for each in all_strategies(folder, given, domain, file)
        if each.schedule.order != "ddp"
    }
    best = min(
        (key for key in medians if key in strategies), key=lambda key: medians[key], default=None
    )
    return None if best is None else strategies[best]


def all_strategies(
    folder: Path, given: CollectionTarget, domain: Domain, file: ContestFile
) -> list[Strategy]:
    """What AutoSync's tunings tried or brought to the finals, and what competitors build of the
    sizes they tried."""
    found = list(stored_strategies(folder, given.name).values())
    for tuning in sorted((folder / "live").glob(f"{given.name}.autosync_*.jsonl")):
        for line in whole_lines(tuning):
            kind, _, document = line.partition(" ")
            if kind == "proposal":
                found.append(from_json(Proposal, document, tuning.name).candidate.strategy)
    by_name = {each.name: each for each in COMPETITORS}
    ended = {row.key for row in file.rows if row.kind == "final"}
    return found + [
        by_name[row.competitor].build(domain, row.size_mib)
        for row in file.rows
        if row.kind == "search" and row.competitor in by_name and row.key in ended
    ]


def recorded_accounts(
    given: CollectionTarget,
    domain: Domain,
    strategy: Strategy,
    repeats: int,
    launcher: TestbedLauncher,
) -> IterationAccounts:
    """Record the strategy `repeats` times.

    Raises:
        AutosyncError: no recording came back.
    """
    bundle, limit = make_bundle(strategy, domain), iteration_limit(domain)
    workload = Workload(domain, "replay", *given.scales)
    found, why = [], ""
    with launcher.open(workload) as pool:
        for repeat in range(repeats):
            result = pool.run(
                TrialRequest(
                    f"leftover/{repeat}",
                    bundle,
                    warmup=given.warmup,
                    iterations=given.iterations,
                    record=True,
                )
            )
            if result.timeline is None:
                why = result.error.message if result.error else "nothing was recorded"
                continue
            found.append(iteration_accounts(result.timeline, strategy, bundle.plan, domain, limit))
    if not found:
        raise AutosyncError(f"no iteration was recorded: {why}", thing="strategy")
    return median_accounts(found)


def read_accounts(folder: Path) -> dict[str, IterationAccounts]:
    """Of every domain that is done."""
    files = sorted((folder / "leftover").glob("*.json"))
    return {file.stem: from_json(IterationAccounts, file.read_text(), file.name) for file in files}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, default=RECORDS, metavar="FOLDER")
    parser.add_argument("--domains", nargs="+", default=[d.name for d in DOMAINS], metavar="NAME")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--strategy", type=Path, metavar="BUNDLE")
    given = parser.parse_args()
    if given.strategy and len(given.domains) != 1:
        raise SystemExit("--strategy is of one domain: name it with --domains")
    done = read_accounts(given.out)
    for chosen in (domain_named(name, given.out) for name in given.domains):
        if chosen.name in done and not given.strategy:
            continue
        try:
            domain = prepared(chosen, given.out)
            strategy = (
                load_bundle(given.strategy).strategy
                if given.strategy
                else best_strategy(given.out, chosen, domain)
            )
            if strategy is None:
                print(f"{chosen.name}: the live contest has no finals of it yet", flush=True)
                continue
            accounts = recorded_accounts(chosen, domain, strategy, given.repeats, TestbedLauncher())
        except AutosyncError as error:
            print(f"{chosen.name}: {error}", file=sys.stderr, flush=True)
            continue
        file = given.out / "leftover" / f"{chosen.name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(to_json(accounts) + "\n")
        print(f"{chosen.name}: recorded", flush=True)
    print(accounts_table(read_accounts(given.out)))


if __name__ == "__main__":
    main()
