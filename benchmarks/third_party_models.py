"""Third-party models: imported, then trained on two ranks under four strategies beside torch's DDP.

python -m benchmarks.third_party_models [--library NAME] [--only NAME ...] [-o FILE] [--table FILE]

For each model: the operations and variables of its graph, where it was recorded, and for each
strategy the largest difference of any parameter or buffer from torch's DDP after three steps. Or
why it is refused, and then once more with values.

Takes those of transformers, timm and torchvision that load. The latter two are no extras: they
bring another build of torch. `-o` adds a line of JSON for each model to a file, so that the table
can be made in parts; `-o FILE --table PAGE` writes what is in that file as markdown into a page,
between its two marks.
"""

import importlib
import json
import logging
import math
import random
import re
import sys
import time
import warnings
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.bundle import Bundle, make_bundle
from autosync.domain import Domain
from autosync.errors import AutosyncError, NotTraceable
from autosync.graph import ModelGraph
from autosync.importing import import_module
from autosync.importing.training_step import loss_of, module_arguments
from autosync.profiling import profile_from_step_seconds
from autosync.search.designs import known_designs
from autosync.search.designs.building_blocks import assemble, collective
from autosync.strategy import AllReduce, ReduceScatter, Schedule
from benchmarks.emulated import cluster
from benchmarks.output import option_parser
from benchmarks.third_party_zoo import ThirdPartyModel, all_models
from tests.autosync.runtime.ranks import Ranks, ranks

OVERLAPPED = Schedule("fifo", overlap_forward=True)
SHARDS_A_GROUP = 10
MARKS = ("<!-- table: begin -->", "<!-- table: end -->")
STRATEGIES = ("all-reduce", "reduce-scatter, overlapped", "ZeRO-1, overlapped", "servers in turn")


STEPS = 3
RATE = 0.01


Difference = tuple[float, str]
"""How far a parameter or buffer is off, and its name."""


def compare(rank: int, world: int, name: str, bundles: dict[str, Bundle]) -> dict[str, Difference]:
    """For each bundle the largest difference from torch's DDP after `STEPS`."""
    chosen = all_models()[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _seed(0)
        begun = {name: value.clone() for name, value in chosen.build().state_dict().items()}
        expected = _trained(chosen, rank, _in_ddp(chosen))
        if not largest_difference(begun, expected)[0]:
            raise AssertionError("three steps changed nothing, so that nothing is compared")
        return {
            kind: largest_difference(expected, _trained(chosen, rank, _under(bundle)))
            for kind, bundle in bundles.items()
        }


Distribute = Callable[[nn.Module, Any], tuple[nn.Module, Any]]


def _in_ddp(chosen: ThirdPartyModel) -> Distribute:
    def distribute(model: nn.Module, optimizer: Any) -> tuple[nn.Module, Any]:
        return DistributedDataParallel(model, **chosen.ddp), optimizer

    return distribute


def _under(bundle: Bundle) -> Distribute:
    def distribute(model: nn.Module, optimizer: Any) -> tuple[nn.Module, Any]:
        distributed, optimizer = autosync.distribute(model, optimizer, bundle)
        if distributed is not model:
            raise AssertionError("the bundle did not fit, and DDP ran in its place")
        return distributed, optimizer

    return distribute


def _trained(chosen: ThirdPartyModel, rank: int, distribute: Distribute) -> dict[str, Tensor]:
    """Parameters and buffers after the steps."""
    _seed(0)
    model = chosen.build()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    network, optimizer = distribute(model, optimizer)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        inputs = chosen.batch(generator)
        args, keywords = module_arguments(model, inputs, chosen.loss)
        _seed(1000 * step + rank)  # dropout and the like: the same draws under DDP
        optimizer.zero_grad()
        loss_of(network(*args, **keywords), inputs, chosen.loss).backward()
        optimizer.step()
    if network is model:
        autosync.detach(model)
    else:
        for buffer in model.buffers():  # as DDP does before its next forward pass
            dist.broadcast(buffer, 0)
    found = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return found


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)  # some models draw their masks with it
    random.seed(seed)


def largest_difference(expected: dict[str, Tensor], found: dict[str, Tensor]) -> Difference:
    return max(
        (_difference(expected[name], value), name) for name, value in found.items() if value.numel()
    )


def _difference(expected: Tensor, found: Tensor) -> float:
    """The largest; infinite where either is not a number, which no comparison would find larger."""
    apart = (found.double() - expected.double()).abs().masked_fill(found == expected, 0.0)
    return float(apart.nan_to_num(nan=math.inf, posinf=math.inf).max())


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
        answers = pool.run(compare, chosen.name, bundles_of(graph))
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
        if "operations" not in row:  # refused with values, too
            continue
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
    parser = option_parser(__doc__)
    parser.add_argument("--library")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    if given.table and not given.output:
        parser.error("--table takes its rows from a file: name it with -o")
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
    print(table(rows))


if __name__ == "__main__":
    main()
