"""A dataset of measured strategies in figures: a pandas table, a summary of each domain, and the
datasheet, whose text is here and whose figures come from the data.

The datasheet has the form of Gebru et al., Datasheets for Datasets (arXiv 1803.09010).
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from autosync.documents import from_json
from autosync.domain import Domain
from autosync.simulator.runtime_dataset import MeasuredDomain, load_dataset, read_trials
from autosync.strategy import Strategy

KINDS = ("all_reduce", "parameter_server", "reduce_scatter", "all_gather", "factors")


def trials_table(folder: Path) -> pd.DataFrame:
    """Every pass of every strategy (pass 0 is a control trial), with what it ran in plain columns.

    Beside the columns of the dataset:

        model, cluster        of the domain
        batch_size            examples of one replica
        world_size            replicas
        compute_seconds       of forward and backward, on a device of nominal speed
        order, slice_bytes, overlap_forward, gather     of the schedule
        shards, groups        how many; shards of a group travel in one message (or its slices)
        all_reduce, parameter_server, reduce_scatter, all_gather, factors   shards of each kind

    Raises:
        NotFound, InvalidInput: as `load_dataset`.
    """
    trials = read_trials(folder)
    domains = [each.domain for each in load_dataset(folder)]
    of_domain = pd.DataFrame([{"domain": each.id, **_domain_facts(each)} for each in domains])
    distinct = trials[["strategy_id", "strategy"]].drop_duplicates("strategy_id")
    of_strategy = pd.DataFrame(
        [
            _strategy_facts(str(identity), str(text))
            for identity, text in zip(distinct["strategy_id"], distinct["strategy"], strict=True)
        ]
    )
    return trials.merge(of_domain, on="domain").merge(of_strategy, on="strategy_id")


@dataclass(frozen=True, slots=True)
class DomainSummary:
    """A domain of a dataset in figures.

    compute_seconds: forward and backward at nominal speed. strategies: without error, `picks` of
    them chosen by searches. passes: all of them, without control trials.
    fastest_seconds, slowest_seconds: of those strategies; ddp_seconds: of torch's DDP; None where
    there is none. noise: as `MeasuredDomain.noise`.
    spread: the median within a pass. pass_difference, occasion_difference: median of |ln(a / b)| of
    a strategy's first two passes on an occasion, and of its first two occasions' medians; None
    where there is one only. byte_scale, time_scale: s and k, as many as there were.
    """

    model: str
    cluster: str
    batch_size: int
    world_size: int
    compute_seconds: float
    strategies: int
    picks: int
    failed: int
    passes: int
    occasions: int
    fastest_seconds: float | None
    slowest_seconds: float | None
    ddp_seconds: float | None
    noise: float | None
    spread: float | None
    pass_difference: float | None
    occasion_difference: float | None
    byte_scales: tuple[float, ...]
    time_scales: tuple[float, ...]


def summaries(measured: Sequence[MeasuredDomain], trials: pd.DataFrame) -> list[DomainSummary]:
    """A summary of each domain, in their order; `trials` as `read_trials` reads them."""
    trials = trials[trials["pass"] > 0]
    return [_summary(each, trials[trials["domain"] == each.domain.id]) for each in measured]


def _domain_facts(domain: Domain) -> dict[str, Any]:
    return {
        "model": domain.graph.name,
        "cluster": domain.cluster.name,
        "batch_size": domain.batch_size,
        "world_size": domain.world_size,
        "compute_seconds": domain.profile.compute_seconds,
    }


def _strategy_facts(identity: str, text: str) -> dict[str, Any]:
    strategy = from_json(Strategy, text, source=f"strategy {identity}")
    shards = [shard for choice in strategy.choices for shard in choice.shards]
    kinds = Counter[str](shard.kind for shard in shards)
    return {
        "strategy_id": identity,
        "order": strategy.schedule.order,
        "slice_bytes": strategy.schedule.slice_bytes,
        "overlap_forward": strategy.schedule.overlap_forward,
        "gather": strategy.schedule.gather,
        "shards": len(shards),
        "groups": len({shard.group for shard in shards}),
        **{kind: kinds[kind] for kind in KINDS},
    }


def _summary(each: MeasuredDomain, rows: pd.DataFrame) -> DomainSummary:
    seconds = each.label_seconds
    facts = _domain_facts(each.domain)
    return DomainSummary(
        **facts,
        strategies=len(each),
        picks=len(each.picks),
        failed=each.failed,
        passes=len(rows),
        occasions=int(rows["occasion"].nunique()),
        fastest_seconds=float(seconds.min()) if len(each) else None,
        slowest_seconds=float(seconds.max()) if len(each) else None,
        ddp_seconds=_median(rows.loc[rows["origin"] == "ddp", "step_seconds"]),
        noise=each.noise,
        spread=_median(rows["spread"]),
        pass_difference=_difference(rows, ["strategy_id", "occasion"], "pass"),
        occasion_difference=_difference(rows, ["strategy_id"], "occasion"),
        byte_scales=tuple(float(scale) for scale in sorted(rows["byte_scale"].unique())),
        time_scales=tuple(float(scale) for scale in sorted(rows["time_scale"].unique())),
    )


def _difference(rows: pd.DataFrame, same: list[str], between: str) -> float | None:
    """Median of |ln(a / b)| where all of `same` is alike and `between` is 1 and 2."""
    seconds = rows.pivot_table(
        index=same, columns=between, values="step_seconds", aggfunc="median", observed=True
    )
    if not {1, 2} <= set(seconds.columns):
        return None
    return _median((seconds[1] / seconds[2]).map(math.log).abs())


def _median(column: "pd.Series[float]") -> float | None:
    values = column.dropna().astype(float)
    return float(np.median(values)) if len(values) else None


TITLE = "Measured runtimes of synchronization strategies"
WHAT = """\
What a strategy of gradient synchronization costs, measured: for each domain (a model on a cluster)
many complete strategies and the seconds an iteration took with each. It exists to judge and to
train predictions of which strategy is faster. Nothing in it is about people.
"""

FILES = """\
| file | holds |
|---|---|
| `domains/<id>.json` | a domain: graph, cluster with its fitted message costs, profile, optimizer |
| `strategies.parquet` | `domain`, `strategy_id`, `strategy`: the document as JSON |
| `trials.parquet` | a row a measuring pass |

| column of trials | unit | meaning |
|---|---|---|
| domain, strategy_id | | which domain, which strategy: hashes of their content |
| origin | | `sampled`, a builder's name, `pick/` and who chose it, or `canary`: a control |
| occasion | | 1, or 2 where everything was measured again much later |
| pass | | 1, 2, and 3 where the first two differ by more than 5 %; 0 is a control |
| step_seconds | s | median over the pass's iterations, divided by k; null where it failed |
| spread | share | (90th - 10th percentile) / median within the pass |
| error | | why it failed, else null |
| launcher | | where it ran |
| byte_scale | | s of an emulated cluster: messages carry s times their bytes; 1 on a real one |
| time_scale | | k of an emulated cluster: everything takes k times as long; 1 on a real one |
| load | share | of the CPU that others used meanwhile, or null |
| round | | in which a pick was chosen, from 1; else null |
| predicted_seconds | s | of a pick, by what chose it and then; null of other strategies |

Other columns are the record of a pass: seconds of each iteration, overhead, peak memory, bytes
sent, when it was measured, versions. `autosync schema Strategy` and `autosync schema Domain` print
the documents' schemas.
"""

HOW = """\
Every strategy runs in processes of its own that exchange real tensors. Trials replace compute by a
sleep of the profiled duration, to absolute deadlines; links are shaped. A pass is a warm-up and the
measured iterations. Passes go over all strategies, each in an order of its own, so that a slow hour
does not fall on one strategy alone. Where two passes differ by more than 5 %, a third decides;
`load` is what others on the machine used meanwhile. A known strategy, the control, runs between
others (`canary`); where it has drifted, what was measured since is measured again. What failed
stays in the table with its reason.

Picks are what searches chose from 30,000 proposals a round, in rounds: a third each by the
timeline (`pick/timeline`), by a Gaussian process (`pick/transferred`), and at random, which the
timeline then predicts (`pick/random`). The Gaussian process knew the strategies of the plan's
`pick_sources` that are no picks, but none of the domain's, and the domain's own picks of earlier
rounds. The first pass of a round comes before the next is chosen. A pick differs in its messages
from all that was measured before it. As in a tuning, those that one chooser takes in a round are
unlike each other (`benchmarks.picks`).
"""

NOISE = """\
Medians over the strategies. Spread: of the iterations of a pass, (p90 - p10) / median. Differences
are absolute ones of logarithms: between a strategy's first two passes on an occasion, and between
two occasions, hours apart. Noise, a robust standard deviation, is 1.4826 times the latter where
there are two occasions, else the former."""

LIMITS = """\
- Links are emulated where `launcher` says so: bandwidth is, latency is not.
- Compute is a sleep: computing and communicating do not compete for one device.
- The strategies are what the runtime executes and the sampler draws; their distribution is not that
  of any production system.
- Profiles marked `estimated` come from data sheets, not from a run.
- Compare seconds within a domain. Across domains s and k may differ.
- Test strategies must not choose a model or a setting: split by strategy, or leave domains out.
"""


FIGURES = """\
`autosync dataset describe FOLDER` prints the figures of this page. They were measured where
`launcher` says; on a testbed links are emulated on CPU cores."""

READING = """\
```python
from pathlib import Path
from autosync.simulator.runtime_dataset import load_dataset  # domains with arrays
from autosync.simulator.dataset_description import trials_table  # one pandas table

table = trials_table(Path("datasets/runtimes"))
```
"""


def datasheet(measured: Sequence[MeasuredDomain], trials: pd.DataFrame) -> str:
    """Markdown: what the dataset holds, how it was measured, how far it can be trusted. Arguments:
    what `load_dataset` and `read_trials` read."""
    domains = summaries(measured, trials)
    sections = {
        "What it is": WHAT,
        "What it holds": _holdings(domains, trials),
        "Files and units": FILES,
        "How it was measured": HOW + _provenance(trials),
        "Repeatability": _repeatability(domains),
        "Limits": LIMITS,
        "Reading it": READING,
    }
    body = "\n\n".join(f"## {name}\n\n{text.strip()}" for name, text in sections.items())
    return f"# {TITLE}\n\n{FIGURES}\n\n{body}\n"


def _holdings(domains: list[DomainSummary], trials: pd.DataFrame) -> str:
    columns = "model, cluster, replicas, batch, compute ms, strategies, picks, failed, passes"
    columns += ", fastest ms, DDP ms, slowest ms, s, k"
    rows = [
        (
            each.model,
            each.cluster,
            each.world_size,
            each.batch_size,
            _milliseconds(each.compute_seconds),
            each.strategies,
            each.picks,
            each.failed,
            each.passes,
            _milliseconds(each.fastest_seconds),
            _milliseconds(each.ddp_seconds),
            _milliseconds(each.slowest_seconds),
            ", ".join(f"{scale:g}" for scale in each.byte_scales),
            ", ".join(f"{scale:g}" for scale in each.time_scales),
        )
        for each in domains
    ]
    controls = int((trials["pass"] == 0).sum())
    total = (
        f"{len(domains)} domains, {sum(each.strategies for each in domains)} strategies measured "
        f"soundly, {len(trials) - controls} passes and {controls} controls. Milliseconds are "
        "an iteration's."
    )
    return f"{total}\n\n{_table(columns.split(', '), rows)}"


def _provenance(trials: pd.DataFrame) -> str:
    lines = [f"- launcher: {_listed(trials['launcher'])}"]
    if "versions" in trials:
        lines.append(f"- versions: {_listed(trials['versions'])}")
    if "measured_at" in trials:
        times = pd.to_datetime(trials["measured_at"].dropna(), unit="s")
        lines.append(f"- measured: {times.min():%Y-%m-%d} to {times.max():%Y-%m-%d}")
    return "\n" + "\n".join(lines)


def _listed(column: "pd.Series[str]") -> str:
    """Distinct values, the most frequent first; five at most."""
    values = [str(value) for value in column.dropna().value_counts().index]
    more = f" and {len(values) - 5} more" if len(values) > 5 else ""
    return "; ".join(values[:5]) + more


def _repeatability(domains: list[DomainSummary]) -> str:
    columns = "model, cluster, spread, between passes, between occasions, noise"
    rows = [
        (
            each.model,
            each.cluster,
            _percent(each.spread),
            _percent(each.pass_difference),
            _percent(each.occasion_difference),
            _percent(each.noise),
        )
        for each in domains
    ]
    return f"{NOISE}\n\n{_table(columns.split(', '), rows)}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"
