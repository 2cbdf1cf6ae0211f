"""The trained simulator that comes with AutoSync."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from autosync.bundled_data import data_file, data_folder
from autosync.cluster.cluster_file import load_cluster
from autosync.documents import from_json
from autosync.domain import Domain
from autosync.models import bundled
from autosync.profiling import estimate_profile
from autosync.simulator.learned.checkpoint import FILE, FOLDER, default_simulator, read_card
from autosync.simulator.learned.features.domain_descriptor import describe_domain
from autosync.simulator.learned.gaussian_process import kept_rows, source_trials
from autosync.simulator.learned.training import split_trials
from autosync.simulator.ranking_accuracy import pairwise_accuracy
from autosync.simulator.runtime_dataset import (
    MeasuredDomain,
    dataset_hash,
    domain_of_rows,
    read_trials,
)
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator

CARD = read_card(data_file(FOLDER, FILE))
MOST_BYTES = 500_000


@pytest.fixture(scope="module")
def measured() -> MeasuredDomain:
    """Of the bundled dataset, the domain that the timeline ranks worst."""
    folder = data_folder("runtimes")
    identity = next(source.id for source in CARD.sources if source.graph == "ncf_sparse")
    domain = from_json(Domain, (folder / "domains" / f"{identity}.json").read_text())
    trials = read_trials(folder)
    return domain_of_rows(domain, trials[trials["domain"] == identity])


@pytest.mark.long
def test_it_has_learned_from_all_measurements_beside_it(
    bundled_dataset: list[MeasuredDomain],
) -> None:
    assert CARD.dataset == dataset_hash(bundled_dataset)
    assert [source.id for source in CARD.sources] == [each.domain.id for each in bundled_dataset]


def test_it_has_learned_from_what_the_measurements_are_today(measured: MeasuredDomain) -> None:
    """Where this fails, measurements or features have changed: train it again (datasets/simulators
    has the command)."""
    learned = split_trials(measured.domain, measured.population, measured.label_seconds).learned
    fast = learned.take(kept_rows(learned.features.base_seconds))
    kept = source_trials(fast.features, fast.step_seconds)
    place = [source.id for source in CARD.sources].index(measured.domain.id)
    known = default_simulator().sources[place]
    np.testing.assert_allclose(known.columns, kept.columns, rtol=1e-4)
    np.testing.assert_allclose(known.residual, kept.residual, atol=1e-6)


def test_it_is_small_and_says_how_well_its_like_ranks_what_it_has_not_seen() -> None:
    assert data_file(FOLDER, FILE).stat().st_size < MOST_BYTES
    assert CARD.accuracy is not None
    assert CARD.accuracy > 0.8
    assert "other models" in CARD.unseen


def test_it_ranks_what_it_was_not_told_better_than_the_timeline(measured: MeasuredDomain) -> None:
    """Strategies that are held out."""
    domain = measured.domain
    split = split_trials(domain, measured.population, measured.label_seconds)
    held_out = np.flatnonzero(split.held_out)
    population, labels = measured.population.take(held_out), measured.label_seconds[held_out]
    timeline = pairwise_accuracy(TimelineSimulator().predict(domain, population), labels)
    found = pairwise_accuracy(default_simulator().predict(domain, population), labels)
    assert found > timeline + 0.02


def test_what_it_learned_of_gloo_says_less_of_nccl() -> None:
    """Nothing of the level."""
    graph = bundled("resnet50")
    gloo = Domain(graph, load_cluster("example-4x1"), estimate_profile(graph, "a10g"))
    nccl = replace(gloo, cluster=replace(gloo.cluster, backend="nccl"))
    simulator = default_simulator()
    assert simulator.posterior(describe_domain(nccl)).level() == 0.0
    assert simulator.posterior(describe_domain(gloo)).level() != 0.0


def test_ranking_loads_neither_torch_nor_scikit_learn() -> None:
    code = (
        "import sys\n"
        "from autosync.cluster.cluster_file import load_cluster\n"
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
        "assert default_simulator().predict(domain, some).min() > 0\n"
        "assert not {'torch', 'sklearn', 'torch_geometric'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
