"""A dataset as tables of pandas: every pass with what it ran; and its domains in figures."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from autosync.documents import from_json
from autosync.domain import Domain
from autosync.simulator.evaluation.measured_dataset import load_dataset, read_trials
from autosync.simulator.evaluation.measured_domain import MeasuredDomain
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


def summaries(folder: Path) -> list[DomainSummary]:
    """A summary of each domain, by name.

    Raises:
        NotFound, InvalidInput: as `load_dataset`.
    """
    return summaries_of(load_dataset(folder), read_trials(folder))


def summaries_of(measured: Sequence[MeasuredDomain], trials: pd.DataFrame) -> list[DomainSummary]:
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
