"""Third-party models: imported, then trained on two ranks under four strategies beside torch's DDP.

python -m benchmarks.third_party_models [--library NAME] [--only NAME ...] [-o FILE] [--table FILE]

For each model: the operations and variables of its graph, where it was recorded, and for each
strategy the largest difference of any parameter or buffer from torch's DDP after three steps. Or
why it is refused, and then once more with values.

Takes those of transformers, timm and torchvision that load. The latter two are no extras: they
bring another build of torch. `-o` adds a line of JSON for each model to a file, so that the table
can be made in parts; `--table` writes what is in that file as markdown into a page, between its two
marks.
"""

import argparse
import importlib
import json
import logging
import re
import sys
import time
import warnings
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from autosync.bundle import Bundle, make_bundle
from autosync.domain import Domain
from autosync.errors import AutosyncError, NotTraceable
from autosync.graph import ModelGraph
from autosync.importing import import_module
from autosync.profiling import profile_from_step_seconds
from autosync.search.designs import known_designs
from autosync.search.designs.building_blocks import assemble, collective
from autosync.strategy import AllReduce, ReduceScatter, Schedule
from benchmarks.emulated import cluster
from benchmarks.third_party import beside_ddp
from benchmarks.third_party.all_models import all_models
from benchmarks.third_party.zoo import ThirdPartyModel
from tests.autosync.runtime.ranks import Ranks, ranks

OVERLAPPED = Schedule("fifo", overlap_forward=True)
SHARDS_A_GROUP = 10
MARKS = ("<!-- table: begin -->", "<!-- table: end -->")
STRATEGIES = ("all-reduce", "reduce-scatter, overlapped", "ZeRO-1, overlapped", "servers in turn")


def bundles_of(graph: ModelGraph) -> dict[str, Bundle]:
    """Groups of ten variables, so that a small model has several messages, too."""
    where = Domain(graph, cluster(1, 2), profile_from_step_seconds(graph, 0.1, "v100"))
    scattered = collective(where, ReduceScatter(0))
    sharded = collective(where, ReduceScatter(0, sharded_update=True))
    strategies = (
        assemble(where, collective(where, AllReduce(0)), limit_shards=SHARDS_A_GROUP),
        assemble(where, scattered, schedule=OVERLAPPED, limit_shards=SHARDS_A_GROUP),
        assemble(where, sharded, schedule=OVERLAPPED, limit_shards=SHARDS_A_GROUP),
        known_designs.ps_load_balanced(where),
    )
    return {
        kind: make_bundle(strategy, where)
        for kind, strategy in zip(STRATEGIES, strategies, strict=True)
    }


def tried(chosen: ThirdPartyModel, pool: Ranks) -> dict[str, Any]:
    """One line of the table."""
    row: dict[str, Any] = {"model": chosen.name, "library": chosen.library, "ran": ran(chosen)}
    graph = None
    for values in (False, True):
        start = time.perf_counter()
        try:
            graph = _imported(chosen, values)
        except NotTraceable as refusal:
            row["refused" if not values else "refused with values"] = refusal.message
            continue
        row |= {"values": values, "seconds": round(time.perf_counter() - start, 2)}
        break
    if graph is None:
        return row
    row |= {"operations": len(graph.operations), "variables": len(graph.variables)}
    try:
        answers = pool.run(beside_ddp.compare, chosen.name, bundles_of(graph))
        largest = {kind: max(a[kind] for a in answers) for kind in answers[0]}
        row["differences"] = {kind: difference for kind, (difference, _) in largest.items()}
        row["differ"] = sorted({name for difference, name in largest.values() if difference})
    except (AutosyncError, AssertionError) as error:
        row["failed"] = str(error)[-600:]
    return row


def ran(chosen: ThirdPartyModel) -> str:
    """With which versions, and when."""
    return f"{chosen.library} {version(chosen.library)}, torch {torch.__version__}, {date.today()}"


def loads(library: str) -> bool:
    try:
        importlib.import_module(library)
    except ImportError as error:
        print(f"{library} is left out, since it does not load: {error}", file=sys.stderr)
        return False
    return True


def _imported(chosen: ThirdPartyModel, values: bool) -> ModelGraph:
    torch.manual_seed(0)
    return import_module(
        chosen.build(),
        chosen.batch(torch.Generator().manual_seed(0)),
        chosen.loss,
        name=chosen.name,
        batch_size=chosen.batch_size,
        values=values,
    )


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"| model | library | graph | {' | '.join(STRATEGIES)} |", "|---" * 7 + "|"]
    for row in rows:
        graph = f"{row['operations']} operations, {row['variables']} variables"
        if row.get("values"):
            graph += ", with values"
        found = row.get("differences", {})
        cells = [f"{found[kind]:.2g}" if kind in found else "failed" for kind in STRATEGIES]
        if row.get("differ"):
            cells[-1] += f" ({', '.join(row['differ'])})"
        lines.append(f"| {row['model']} | {row['library']} | {graph} | {' | '.join(cells)} |")
    lines += ["", "Run with:", "", *(f"- {one}" for one in dict.fromkeys(r["ran"] for r in rows))]
    refused = [row for row in rows if "refused" in row]
    if refused:
        lines += ["", "Refused without values:", ""]
        lines += [f"- {row['model']}: {_reason(row['refused'])}" for row in refused]
    return "\n".join(lines)


def _reason(message: str) -> str:
    """Paths of packages begin with the package."""
    return re.sub(r"/\S*site-packages/", "", message)


def write_table(results: Path, page: Path) -> None:
    newest = {row["model"]: row for row in map(json.loads, results.read_text().splitlines())}
    order = {name: place for place, name in enumerate(all_models())}
    rows = sorted(newest.values(), key=lambda row: order[row["model"]])
    begin, end = MARKS
    before, _, rest = page.read_text().partition(begin)
    page.write_text(f"{before}{begin}\n{table(rows)}\n{end}{rest.partition(end)[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    if given.table:
        write_table(given.output, given.table)
        return
    logging.disable(logging.WARNING)  # what models say of their configurations
    warnings.simplefilter("ignore")
    rows = []
    wanted = [
        chosen
        for chosen in all_models().values()
        if given.library in (None, chosen.library) and (not given.only or chosen.name in given.only)
    ]
    there = {library for library in {chosen.library for chosen in wanted} if loads(library)}
    with ranks(2) as pool:
        for chosen in wanted:
            if chosen.library not in there:
                continue
            rows.append(tried(chosen, pool))
            print(json.dumps(rows[-1]), flush=True)
            if given.output:
                with given.output.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    print(table([row for row in rows if "operations" in row]))


if __name__ == "__main__":
    main()
