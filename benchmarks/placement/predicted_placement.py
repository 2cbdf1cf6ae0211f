"""HeteroG's comparisons in the timeline, in the form of its tables 4 and 7: even and proportional
replicas by servers and by all-reduce, the search without placements, and placements.

python -m benchmarks.placement.predicted_placement [--cluster NAME] [--models NAME ...]
    [--missing SHARE]

Predictions only, in milliseconds an iteration. Compute is a roofline of a V100's, every replica has
the model's usual batch at an even share, the optimizer is Adam. Proposers begin from the best
hand-designed strategy that modules can be placed in (the base), with equal numbers of evaluations;
`prior` is the policy with a learning rate of 0. Of what does not fit, the share of all memory that
it lacks. --missing: devices lack so much of the values, gradients and optimizer state of a replica.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from autosync.cluster.cluster_file import load_cluster
from autosync.domain import Domain, Optimizer
from autosync.extensions.placement.policy import PolicySettings, learned_placement
from autosync.extensions.placement.proposals import (
    EvaluatedPlacement,
    PlacementEvaluator,
    may_be_placed,
    place_greedily,
)
from autosync.models import bundled
from autosync.population import decode, encode
from autosync.profiling import estimate_profile
from autosync.search.designs import known_designs
from autosync.search.designs.design_table import hand_designed
from autosync.search.domain_facts import replica_layouts
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.memory.memory_check import fitting_rows
from autosync.simulator.memory.peak_memory import device_memory_bytes, memory_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Schedule, Strategy
from benchmarks.output import option_parser, print_head

MODELS = ("vgg19", "resnet200", "inception_v3", "mobilenet_v2", "transformer", "bert_large")
UNEVEN = Space(uneven_shares=True)
SAMPLES = 2048
EVALUATIONS, SEEDS = 256, 2
"""Of each proposer."""
COLUMNS = (
    *("model", "EV-PS", "EV-AR", "CP-PS", "CP-AR", "search without", "base"),
    *("greedy", "prior", "policy", "fastest in its order", "FIFO"),
)


def domain_of(model: str, cluster: str, missing: float | None) -> Domain:
    graph = bundled(model)
    profile = estimate_profile(graph, "v100")
    domain = Domain(graph, load_cluster(cluster), profile, Optimizer("adam", True, 2))
    return domain if missing is None else _with_memory(domain, missing)


def _with_memory(domain: Domain, missing: float) -> Domain:
    """Devices in proportion to their own memory, the smallest without room for so much."""
    population = encode([known_designs.all_reduce_25mb(domain)], domain)
    peaks = memory_of(domain).peak_bytes(compile_plans_fast(population, domain), population)
    held = domain.graph.size_bytes * (2 + domain.optimizer.state_tensors)
    scale = float(((peaks[0] - missing * held) / device_memory_bytes(domain)).max())
    nodes = tuple(
        replace(
            node,
            devices=tuple(
                replace(each, memory_gb=each.memory_bytes * scale / 1e9) for each in node.devices
            ),
        )
        for node in domain.cluster.nodes
    )
    return replace(domain, cluster=replace(domain.cluster, nodes=nodes))


def baselines(domain: Domain) -> list[Strategy]:
    """HeteroG's four, section 6.1: even shares, then shares by speed."""
    designs = known_designs.ps_load_balanced(domain), known_designs.all_reduce_25mb(domain)
    layouts = replica_layouts(domain, UNEVEN)
    return [
        replace(each, replicas=shares) for shares in (layouts[0], layouts[-1]) for each in designs
    ]


def without_placement(
    evaluator: PlacementEvaluator,
) -> tuple[EvaluatedPlacement, EvaluatedPlacement]:
    """The best of the hand-designed strategies and of 2,048 samples; and the best hand-designed one
    that modules can be placed in."""
    domain = evaluator.domain
    found = evaluator.evaluate([each for _, each in hand_designed(domain, UNEVEN)])
    base = min((each for each in found if may_be_placed(each.strategy)), key=lambda each: each.rank)
    population = sample(domain, UNEVEN, 0, SAMPLES, 0)
    rows = fitting_rows(domain, population)
    if len(rows):
        seconds = evaluator.simulator.predict(domain, population)[rows]
        best = decode(population, int(rows[np.argmin(seconds)]), domain)
        found += evaluator.evaluate([best])
    return min(found, key=lambda each: each.rank), base


def shown(found: list[EvaluatedPlacement]) -> str:
    """The middle one, with the best and the worst where they differ."""
    ordered = sorted(found, key=lambda each: each.rank)
    middle, best, worst = (_text(ordered[i]) for i in (len(ordered) // 2, 0, -1))
    return middle if best == worst else f"{middle} ({best} to {worst})"


def _text(found: EvaluatedPlacement) -> str:
    return f"{found.step_seconds * 1e3:.1f}" if found.fits else f"lacks {found.excess:.1%}"


def compare(domain: Domain) -> tuple[list[str], dict[str, float]]:
    """The row of the table, and CPU seconds of each proposer."""
    evaluator = PlacementEvaluator(domain, TimelineSimulator())
    row = [[each] for each in evaluator.evaluate(baselines(domain))]
    best, base = without_placement(evaluator)
    row += [[best], [base]]

    def learned(seed: int, rate: float) -> EvaluatedPlacement:
        settings = PolicySettings(seed=seed, learning_rate=rate)
        return learned_placement(evaluator, base.strategy, EVALUATIONS, settings)

    proposers: dict[str, Callable[[int], EvaluatedPlacement]] = {
        "greedy": lambda seed: place_greedily(evaluator, base.strategy, EVALUATIONS),
        "prior": lambda seed: learned(seed, 0.0),
        "policy": lambda seed: learned(seed, PolicySettings().learning_rate),
    }
    spent = {}
    for name, propose in proposers.items():
        started = time.process_time()
        runs = range(1 if name == "greedy" else SEEDS)
        row.append([propose(seed) for seed in runs])
        spent[name] = (time.process_time() - started) / len(runs)
    fastest = min((each for found in row for each in found), key=lambda each: each.rank)
    schedule = fastest.strategy.schedule
    if schedule.order != "ddp" and fastest.strategy.engine is None:
        fifo = replace(fastest.strategy, schedule=Schedule("fifo", schedule.slice_bytes))
        row += [[fastest], evaluator.evaluate([fifo])]
    return [shown(found) for found in row], spent


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--cluster", default="heterog-12-gpus")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--missing", type=float)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print_head(*COLUMNS)
    for model in given.models:
        domain = domain_of(model, given.cluster, given.missing)
        row, spent = compare(domain)
        seconds = ", ".join(f"{name} {each:.1f}" for name, each in spent.items())
        print(f"| {model} | {' | '.join(row)} |  <!-- CPU seconds: {seconds} -->", flush=True)


if __name__ == "__main__":
    main()
