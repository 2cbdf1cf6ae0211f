"""The learned policy: what it draws, and what training finds where the best is known."""

import pytest
import torch

from autosync.extensions.placement.document import modules_of
from autosync.extensions.placement.policy import (
    PlacementPolicy,
    PolicySettings,
    chances_of,
    learned_placement,
    policy_task,
    train_policy,
)
from autosync.search.designs.known_designs import all_reduce_per_variable
from autosync.search.designs.list_schedule import list_schedule
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.verification import verify
from tests.placed_models import LAYERS, Mixing, Wide, heavy_layers, recorded

SETTINGS = PolicySettings(groups=6)


def test_a_new_policy_changes_as_many_groups_as_it_is_told() -> None:
    domain = recorded(Wide(), 3)
    settings = PolicySettings(changes=2.0)
    task = policy_task(domain, TimelineSimulator(), list_schedule(domain), settings)
    chances = chances_of(PlacementPolicy(), task)
    changed = (1 - chances.probs[:, task.actions.follow]).sum()
    assert float(changed.detach()) == pytest.approx(2.0)
    assert torch.equal(chances.probs > 0, torch.from_numpy(task.actions.allowed))


def test_a_policy_that_is_stopped_keeps_what_it_has_found() -> None:
    domain = heavy_layers(gbps=0.05)
    base, simulator = list_schedule(domain), TimelineSimulator()
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 3

    task = policy_task(domain, simulator, base, SETTINGS, stop)
    train_policy(PlacementPolicy(), [task], 1000, SETTINGS)
    assert len(task.curve) == 3
    assert task.best.step_seconds <= task.base.step_seconds
    at_once = learned_placement(domain, simulator, base, settings=SETTINGS, stop=lambda: True)
    assert at_once.strategy == base


def test_draws_go_on_around_the_best() -> None:
    domain = heavy_layers((1.0, 3.0), gbps=0.05)
    task = policy_task(domain, TimelineSimulator(), list_schedule(domain), SETTINGS)
    train_policy(PlacementPolicy(), [task], 64, SETTINGS)
    assert task.best.improves(task.base)
    assert chances_of(PlacementPolicy(), task).probs.argmax(1).tolist() == list(task.chosen)


def test_training_finds_what_slow_links_want() -> None:
    domain = heavy_layers(gbps=0.05)
    base = all_reduce_per_variable(domain)
    found = learned_placement(domain, TimelineSimulator(), base, 240, settings=SETTINGS)
    before = policy_task(domain, TimelineSimulator(), base, SETTINGS).base
    assert found.step_seconds < before.step_seconds / 2
    verify(found.strategy, domain)


def test_what_does_not_fit_is_made_to_fit() -> None:
    domain = heavy_layers(gbps=1e6, memory_gb=0.015)
    base = all_reduce_per_variable(domain)
    found = learned_placement(domain, TimelineSimulator(), base, 100, settings=SETTINGS)
    assert found.fits
    assert 0 < len(modules_of(found.strategy)) < LAYERS


def test_training_is_repeatable_and_keeps_to_its_budget() -> None:
    domain = heavy_layers((1.0, 3.0), gbps=0.05)
    curves = []
    for _ in range(2):
        torch.manual_seed(5)
        task = policy_task(domain, TimelineSimulator(), list_schedule(domain), SETTINGS)
        train_policy(PlacementPolicy(), [task], 41, SETTINGS)
        assert task.judge.evaluations <= 1 + 41
        curves.append([(count, best.step_seconds) for count, best in task.curve])
    assert curves[0] == curves[1]


def test_nothing_is_tried_twice_and_what_is_left_ends_the_training() -> None:
    domain = heavy_layers(gbps=0.05)
    settings = PolicySettings(groups=1, servers=False)
    task = policy_task(domain, TimelineSimulator(), list_schedule(domain), settings)
    train_policy(PlacementPolicy(), [task], 1000, settings)
    assert task.judge.evaluations == 3  # the base, and a module on either device
    assert len(task.drawn) == 3


def test_a_model_without_modules_to_place_keeps_its_base() -> None:
    domain = recorded(Mixing().norm[1], 2)
    base = list_schedule(domain)
    assert learned_placement(domain, TimelineSimulator(), base).strategy == base


def test_one_policy_serves_clusters_of_any_size() -> None:
    policy = PlacementPolicy()
    tasks = [
        policy_task(domain, TimelineSimulator(), list_schedule(domain), SETTINGS)
        for domain in (heavy_layers(), recorded(Wide(), 3))
    ]
    train_policy(policy, tasks, 32, SETTINGS)
    for task, world in zip(tasks, (2, 3), strict=True):
        assert policy(task.given).shape == (task.groups.count, world + 4)
        assert task.best.rank <= task.base.rank
