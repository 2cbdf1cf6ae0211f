"""The domains of the live contest, and five on which no setting was chosen."""

from dataclasses import replace
from functools import cache
from pathlib import Path

from autosync.cluster.cluster_file import load_cluster
from autosync.domain import Domain, optimizer_named
from autosync.models import bundled
from autosync.profiling import estimate_profile
from autosync.search.collect.collection_plan import CollectionTarget, ring_seconds
from autosync.trials.machine import usable_cores
from autosync.trials.scales import automatic_scales, time_scale_of_cores
from benchmarks.contest.contest_records import stored_facts


def _target(
    name: str, model: str, cluster: str, rho: float, s: str, optimizer: str, ranks: int = 4
) -> CollectionTarget:
    target = CollectionTarget(name, model, cluster, rho, s, "1", optimizer)
    return _at_time_scale(target, time_scale_of_cores(ranks, usable_cores()))


def _at_time_scale(target: CollectionTarget, time_scale: float) -> CollectionTarget:
    """The slower a pass, the fewer of its iterations tell as much. Where links are busy all along,
    the second iteration is still short of what is held over to the next (ResNet-50 4x1: 88, 117,
    then 120 ms), which a median of four passes over, but not one of two."""
    warmup, iterations = (2, 2) if time_scale >= 4 else (1, 4)
    return replace(target, time_scale=f"{time_scale:.12g}", warmup=warmup, iterations=iterations)


DOMAINS = (
    _target("resnet50-4x1", "resnet50", "example-4x1", 1.5, "1/32", "momentum"),
    _target("vgg16-4x1", "vgg16", "example-4x1-40gbe", 3, "1/128", "momentum"),
    _target("bert-base-2x2", "bert_base", "example-2x2", 2, "1/32", "adamw"),
    _target("transformer-2x2", "transformer", "example-2x2", 1.5, "1/32", "adamw"),
    _target("ncf-4x1", "ncf_sparse", "example-4x1", 3, "1/32", "adagrad"),
    _target("resnet50-uneven", "resnet50", "example-uneven", 2, "1/32", "momentum"),
    _target("resnet101-8x1", "resnet101", "example-8x1", 1, "1/128", "momentum", ranks=8),
)
"""`ring_over_compute` (rho) between 1 and 3; NCF's counts its embedding tables whole, of which an
iteration sends the rows that it touched. Byte scales as in `datasets/runtimes/plan.yaml`; time
scales by `time_scale_of_cores`."""


FIXED = (
    ("gpt2-2x2", "gpt2", "example-2x2", "adamw"),
    ("vit-large-4x1", "vit_large", "example-4x1", "adamw"),
    ("densenet201-uneven", "densenet201", "example-uneven", "momentum"),
    ("dlrm-4x2", "dlrm", "example-4x2", "adagrad"),
    ("lstm-seq2seq-8x1", "lstm_seq2seq", "example-8x1", "momentum"),
)
"""Name, model, cluster and optimizer, written down before their first trial (2026-11-27). Nothing
else is chosen for them: compute is the model's estimated profile on the cluster's device, s is
that of `automatic_scales`, and k the larger of its and that of `time_scale_of_cores`."""
FIXED_BUDGET = 24
"""Trials of everybody who tunes. It was 60, and AutoSync's 24 and 60, until a first estimate of the
hours that this takes (17), before any trial."""
FIXED_REPEATS = 6


@cache
def fixed_domains() -> tuple[CollectionTarget, ...]:
    return tuple(_by_rules(*each) for each in FIXED)


def _by_rules(name: str, model: str, cluster_name: str, optimizer: str) -> CollectionTarget:
    graph, cluster = bundled(model), load_cluster(cluster_name)
    profile = estimate_profile(graph, cluster.fastest_device_type)
    domain = Domain(graph, cluster, profile, optimizer_named(optimizer))
    byte_scale, time_scale = automatic_scales(domain)
    rho = ring_seconds(graph, cluster) / profile.compute_seconds
    target = CollectionTarget(name, model, cluster_name, rho, f"{byte_scale}", "1", optimizer)
    cores = time_scale_of_cores(cluster.world_size, usable_cores())
    return _at_time_scale(target, max(time_scale, cores))


def domain_named(name: str, folder: Path, time_scale: float | None = None) -> CollectionTarget:
    """The domain at the time scale with which it was begun in `folder`, whatever this machine has,
    else at `time_scale`, or its own.

    Raises:
        SystemExit: there is none of the name, or it was begun at another than `time_scale`.
    """
    among = fixed_domains() if name in {each for each, *_ in FIXED} else DOMAINS
    named = {each.name: each for each in among}
    if name not in named:
        raise SystemExit(f"no domain {name!r}; there are {', '.join(named)}")
    begun = {facts.name: facts.time_scale for facts in stored_facts(folder)}
    found = begun.get(name, time_scale)
    if time_scale not in (None, found):
        raise SystemExit(
            f"{name} was begun at k = {found:g} in {folder}, not {time_scale:g}: leave "
            "--time-scale out, or measure it in another folder (-o)"
        )
    return named[name] if found is None else _at_time_scale(named[name], found)
