"""HeteroG's models on its clusters, and what a placement there is held against."""

from dataclasses import replace

import numpy as np

from autosync.cluster_file import load_cluster
from autosync.domain import Domain, Optimizer
from autosync.extensions.placement.placed_designs import may_be_placed
from autosync.extensions.placement.placement_judge import JudgedPlacement, PlacementJudge
from autosync.models import bundled
from autosync.population import decode
from autosync.profiling import estimate_profile
from autosync.search.designs import known_designs
from autosync.search.designs.design_table import hand_designed
from autosync.search.domain_facts import replica_layouts
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.memory.memory_check import fitting_rows
from autosync.strategy import Strategy

MODELS = (
    "vgg19",
    "resnet200",
    "inception_v3",
    "mobilenet_v2",
    "nasnet_large",
    "transformer",
    "bert_large",
    "xlnet_large",
)
LARGE = ("bert_48l", "xlnet_48l")
UNEVEN = Space(uneven_shares=True)
SAMPLES = 2048


def domain_of(model: str, cluster: str) -> Domain:
    """Compute is a roofline of a V100's, other devices by their published peaks; every replica has
    the model's usual batch at an even share; Adam."""
    graph = bundled(model)
    return Domain(
        graph, load_cluster(cluster), estimate_profile(graph, "v100"), Optimizer("adam", True, 2)
    )


def baselines(domain: Domain) -> dict[str, Strategy]:
    """HeteroG's four, section 6.1; those by speed only where speeds differ."""
    layouts = replica_layouts(domain, UNEVEN)
    found = {
        "EV-PS": known_designs.ps_load_balanced(domain),
        "EV-AR": known_designs.all_reduce_25mb(domain),
    }
    if len(layouts) > 1:
        found |= {
            name.replace("EV", "CP"): replace(strategy, replicas=layouts[1])
            for name, strategy in dict(found).items()
        }
    return found


def without_placement(judge: PlacementJudge) -> tuple[JudgedPlacement, JudgedPlacement]:
    """The best of the hand-designed strategies, with even shares and by speed, and of 2,048
    samples; and the best hand-designed one that modules can be placed in."""
    domain = judge.domain
    designs = judge.judge([each for _, each in hand_designed(domain, UNEVEN)])
    placeable = [each for each in designs if may_be_placed(each.strategy)]
    found = [*designs, *_sampled(judge)]
    return min(found, key=lambda each: each.rank), min(placeable, key=lambda each: each.rank)


def _sampled(judge: PlacementJudge) -> list[JudgedPlacement]:
    """The best that fits of the samples, if any does."""
    domain = judge.domain
    population = sample(domain, UNEVEN, 0, SAMPLES, 0)
    rows = fitting_rows(domain, population)
    if not len(rows):
        return []
    seconds = judge.simulator.predict(domain, population)
    best = int(rows[np.argmin(seconds[rows])])
    return judge.judge([decode(population, best, domain)])
