"""The trained simulator that comes with AutoSync."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from autosync.bundled_data import data_file, data_folder
from autosync.cluster_file import load_cluster
from autosync.domain import Domain
from autosync.models import bundled
from autosync.profiling import estimate_profile
from autosync.simulator.learned.checkpoint import (
    FILE,
    FOLDER,
    MEMBERS_OF,
    default_simulator,
    load_checkpoint,
    read_card,
)
from autosync.simulator.learned.models.ensemble import EnsembleModel
from autosync.simulator.learned.models.gaussian_process import GaussianModel
from autosync.simulator.learned.models.source_trials import kept_trials
from autosync.simulator.learned.training import dataset_hash, split_trials
from autosync.simulator.ranking_accuracy import pairwise_accuracy
from autosync.simulator.runtime_dataset import MeasuredDomain, load_dataset
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator

CARD = read_card(data_file(FOLDER, FILE))
MOST_BYTES = 2_000_000


@pytest.fixture(scope="module")
def dataset() -> list[MeasuredDomain]:
    return load_dataset(data_folder("runtimes"))


def test_it_has_learned_from_the_measurements_beside_it(dataset: list[MeasuredDomain]) -> None:
    """Where this fails, measurements or features have changed: train it again (datasets/simulators
    has the command)."""
    assert CARD.dataset == dataset_hash(dataset)
    assert {source.id for source in CARD.sources} == {each.domain.id for each in dataset}
    smallest = min(range(len(dataset)), key=lambda k: dataset[k].domain.graph.size_bytes)
    each = dataset[smallest]
    split = split_trials(each.domain, each.population, each.label_seconds)
    kept = kept_trials([split.learned])
    simulator, _ = load_checkpoint(data_file(FOLDER, FILE), ("gaussian",))
    assert isinstance(simulator.model, EnsembleModel)
    member = simulator.model.members[0]
    assert isinstance(member, GaussianModel)
    assert member.known.sources is not None
    rows = member.known.sources.source == smallest
    np.testing.assert_allclose(member.known.sources.summary[rows], kept.summary, rtol=1e-4)
    np.testing.assert_allclose(member.known.sources.residual[rows], kept.residual, atol=1e-6)


def test_it_is_small_and_says_how_well_its_like_ranks_what_it_has_not_seen() -> None:
    assert data_file(FOLDER, FILE).stat().st_size < MOST_BYTES
    assert CARD.accuracy is not None
    assert CARD.accuracy > 0.8
    assert "other models" in CARD.unseen


@pytest.mark.parametrize("name", ["learned", "ensemble", "trees"])
def test_it_ranks_what_it_was_not_told_better_than_the_timeline(
    name: str, dataset: list[MeasuredDomain]
) -> None:
    """Strategies that are held out, of the domain that the timeline ranks worst."""
    each = next(m for m in dataset if m.domain.graph.name == "ncf_sparse")
    split = split_trials(each.domain, each.population, each.label_seconds)
    simulator = default_simulator(each.domain, name)
    held_out = np.flatnonzero(split.held_out)
    population, labels = each.population.take(held_out), each.label_seconds[held_out]
    timeline = pairwise_accuracy(TimelineSimulator().predict(each.domain, population), labels)
    found = pairwise_accuracy(simulator.predict(each.domain, population), labels)
    assert found > timeline + 0.02


@pytest.mark.parametrize("name", MEMBERS_OF)
def test_every_name_stands_for_members_that_correct_the_timeline(
    name: str, dataset: list[MeasuredDomain]
) -> None:
    each = dataset[0]
    some = each.population.take(np.arange(4))
    simulator = default_simulator(each.domain, name)
    assert isinstance(simulator.model, EnsembleModel)
    assert simulator.model.recipe.members == MEMBERS_OF[name]
    ratio = simulator.predict(each.domain, some) / TimelineSimulator().predict(each.domain, some)
    assert np.ptp(ratio) > 1e-4


def test_what_it_learned_of_gloo_says_nothing_of_nccl() -> None:
    graph = bundled("resnet50")
    cluster = replace(load_cluster("example-4x1"), backend="nccl")
    domain = Domain(graph, cluster, estimate_profile(graph, "a10g"))
    assert default_simulator(domain).name == "timeline+gaussian"
    gloo = replace(domain, cluster=load_cluster("example-4x1"))
    assert default_simulator(gloo).name == "timeline+gaussian+trees"


def test_ranking_loads_neither_torch_nor_scikit_learn() -> None:
    code = (
        "import sys\n"
        "from autosync.cluster_file import load_cluster\n"
        "from autosync.domain import Domain\n"
        "from autosync.models import bundled\n"
        "from autosync.profiling import estimate_profile\n"
        "from autosync.search.designs.design_table import hand_designed\n"
        "from autosync.population import encode\n"
        "from autosync.search.space import Space\n"
        "from autosync.simulator.learned.checkpoint import default_simulator\n"
        "graph = bundled('resnet50')\n"
        "domain = Domain(graph, load_cluster('example-4x1'), estimate_profile(graph, 'a10g'))\n"
        "some = encode([each for _, each in hand_designed(domain, Space())][:2], domain)\n"
        "assert default_simulator(domain).predict(domain, some).min() > 0\n"
        "assert not {'torch', 'sklearn', 'torch_geometric'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
