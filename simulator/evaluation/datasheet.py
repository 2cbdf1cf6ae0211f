"""The datasheet of a dataset: its text here, its figures from the data.

In the form of Gebru et al., Datasheets for Datasets (arXiv 1803.09010).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from autosync.simulator.evaluation.dataset_frames import DomainSummary, summaries_of
from autosync.simulator.evaluation.measured_dataset import load_dataset, read_trials
from autosync.simulator.evaluation.measured_domain import MeasuredDomain

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
Every strategy runs in processes of its own that exchange real tensors. Compute is waited out for
the profiled seconds by absolute deadlines; links are shaped. A pass is a warm-up and the measured
iterations, and passes go over all strategies, each in an order of its own, so that a slow hour does
not fall on one strategy alone. Where two differ by more than 5 %, a third decides; what others on
the machine used meanwhile is in `load`. A known strategy, the control, runs between others
(`canary`); where it has drifted, what was measured since is measured again. What failed stays in
the table with its reason.

Picks are what searches chose from 30,000 proposals a round, in rounds: a third each by the
timeline (`pick/timeline`), by a Gaussian process (`pick/transferred`), and at random, which the
timeline then predicts (`pick/random`). The process knew the strategies of the plan's `pick_sources`
that are no picks, but none of the domain's, and the domain's own picks of earlier rounds. The first
pass of a round comes before the next is chosen. A pick differs in its messages from all that was
measured before it, and as in a tuning those that one chooser takes in a round are unlike each other
(`benchmarks/picks.py`).
"""

NOISE = """\
Medians over the strategies. Spread: of the iterations of a pass, (p90 - p10) / median. Differences
are absolute ones of logarithms: between a strategy's first two passes on an occasion, and between
two occasions, hours apart. Noise, a robust standard deviation, is 1.4826 times the latter where
there are two occasions, else the former."""

LIMITS = """\
- Links are emulated where `launcher` says so: bandwidth is, latency is not.
- Compute is waited out: contention of computing and communicating for one device is not there.
- The strategies are what the runtime executes and the sampler draws; their distribution is not that
  of any production system.
- Profiles marked `estimated` come from data sheets, not from a run.
- Compare seconds within a domain. Across domains s and k may differ.
- Test strategies must not choose a model or a setting: split by strategy, or leave domains out.
"""


READING = """\
```python
from pathlib import Path
from autosync.simulator.evaluation.measured_dataset import (load_dataset  # domains with arrays)
from autosync.simulator.evaluation.dataset_frames import trials_table  # one pandas table

table = trials_table(Path("datasets/runtimes"))
```

`autosync dataset describe FOLDER` prints this page's figures; `autosync dataset export FOLDER OUT`
writes the layout of AutoSync's public dataset.
"""


def datasheet_text(folder: Path, title: str = TITLE) -> str:
    """Markdown: what the dataset holds, how it was measured, how far it can be trusted.

    Raises:
        NotFound, InvalidInput: as `load_dataset`.
    """
    return datasheet_of(load_dataset(folder), read_trials(folder), title)


def datasheet_of(
    measured: Sequence[MeasuredDomain], trials: pd.DataFrame, title: str = TITLE
) -> str:
    """`datasheet_text` of a dataset that was read."""
    domains = summaries_of(measured, trials)
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
    return f"# {title}\n\n{body}\n"


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
