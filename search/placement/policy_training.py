"""A policy learned by REINFORCE with a moving baseline (HeteroG, section 4.1.3): one more proposer,
with a budget of predictions.

What differs from the paper, so that hundreds of predictions do and not tens of thousands: a round
draws around the best that was found, where most groups stay as they are, and nothing twice; rewards
are measured by their spread, so that the weight of the entropy means the same for every model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log

import torch
from torch import Tensor
from torch.distributions import Categorical

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.search.placement.operation_groups import OperationGroups, group_operations
from autosync.search.placement.placement_actions import (
    PlacementActions,
    placement_actions,
    strategy_of_actions,
)
from autosync.search.placement.placement_judge import JudgedPlacement, PlacementJudge
from autosync.search.placement.policy_checkpoint import bundled_policy
from autosync.search.placement.policy_network import PlacementPolicy, PolicyInput
from autosync.simulator.simulator_contract import Simulator
from autosync.strategy import Strategy
from autosync.verification import verify

INFEASIBLE = -20.0
"""Reward of choices that no strategy can have, such as every variable on some ranks only: that of
twice the devices' memory."""

REDRAWN = 4
"""Times the samples of a round that are drawn for some that were not drawn before."""

MOST_ADVANTAGE = 3.0
"""Spreads from the baseline, beyond which a sample weighs no more: one that runs out of memory does
not drown the others."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """groups: the most; the paper's 2,000 are for graphs of TensorFlow operations. samples: of each
    round. changes: groups that chance alone would change in a sample. chance: the share of draws
    that it is left with whatever the policy has learned. entropy: its weight in the objective, at
    the beginning; it falls to zero with the budget. decay: of the moving baseline, and of the
    spread around it. uneven_shares: samples may be dealt by speed. servers: may hold variables."""

    groups: int = 64
    samples: int = 8
    changes: float = 2.0
    chance: float = 0.2
    learning_rate: float = 2e-3
    entropy: float = 0.02
    decay: float = 0.8
    seed: int = 0
    uneven_shares: bool = True
    servers: bool = True


@dataclass(slots=True)
class PolicyTask:
    """A domain to place, and what has been found so far. chosen: the actions of the best. drawn:
    all that were tried. curve: after each round, evaluations and the best."""

    judge: PlacementJudge
    base: JudgedPlacement
    groups: OperationGroups
    actions: PlacementActions
    given: PolicyInput
    settings: PolicySettings
    best: JudgedPlacement
    chosen: tuple[int, ...]
    drawn: set[tuple[int, ...]] = field(default_factory=set)
    baseline: float | None = None
    spread: float = 0.0
    curve: list[tuple[int, JudgedPlacement]] = field(default_factory=list)

    @property
    def domain(self) -> Domain:
        return self.judge.domain


def policy_task(
    domain: Domain, simulator: Simulator, base: Strategy, settings: PolicySettings
) -> PolicyTask:
    """base: a strategy without a placement, whose replicas and messages all else keeps."""
    judge = PlacementJudge(domain, simulator)
    found = judge.judge([base])[0]
    groups = group_operations(domain, settings.groups)
    actions = placement_actions(domain, base, groups, settings.uneven_shares, settings.servers)
    chosen = (actions.follow,) * groups.count
    given = PolicyInput.of(groups, actions)
    return PolicyTask(judge, found, groups, actions, given, settings, found, chosen, {chosen})


def learned_placement(
    domain: Domain,
    simulator: Simulator,
    base: Strategy,
    budget: int = 400,
    policy: PlacementPolicy | None = None,
    settings: PolicySettings | None = None,
) -> JudgedPlacement:
    """The best that a policy found in so many evaluations, `base` among them. policy: fine-tuned
    here in place; by default a copy of the one that comes with AutoSync."""
    settings = settings or PolicySettings()
    task = policy_task(domain, simulator, base, settings)
    with torch.random.fork_rng(devices=[]):  # a training job's own states stay what they are
        torch.manual_seed(settings.seed)
        train_policy(policy or bundled_policy(), [task], budget - 1, settings)
    return task.best


def train_policy(
    policy: PlacementPolicy, tasks: Sequence[PolicyTask], budget: int, settings: PolicySettings
) -> None:
    """In place, round by round, until the tasks have had `budget` more evaluations together, or
    nothing new is drawn."""
    generator = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
    left, waiting = budget, [task for task in tasks if task.groups.count]
    while left > 0 and waiting:
        task = waiting.pop(0)
        weight = settings.entropy * left / budget
        spent = train_round(policy, task, optimizer, generator, min(left, settings.samples), weight)
        left -= spent
        if spent:
            waiting.append(task)


def train_round(
    policy: PlacementPolicy,
    task: PolicyTask,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    samples: int,
    entropy: float,
) -> int:
    """One step of the policy; how many choices were tried."""
    chances = chances_of(policy, task)
    actions = _drawn(chances, task, generator, samples)
    if not actions:
        return 0
    advantages = _advantages(task, torch.tensor(_rewards(task, actions)))
    chosen = torch.stack([chances.log_prob(torch.tensor(each)).sum() for each in actions])
    objective = (chosen * advantages).mean() / task.groups.count**0.5
    objective = objective + entropy * chances.entropy().mean()
    optimizer.zero_grad()
    (-objective).backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    task.curve.append((task.judge.evaluations, task.best))
    return len(actions)


def chances_of(policy: PlacementPolicy, task: PolicyTask) -> Categorical:
    """Of each group's actions: mostly what the best so far has, and what the policy scores."""
    settings, allowed = task.settings, torch.from_numpy(task.actions.allowed)
    others = allowed.sum(1, dtype=torch.float32) - 1
    stays = log(max(1.0, task.groups.count / settings.changes - 1)) + others.clamp(min=1).log()
    place = torch.tensor(task.chosen)[:, None]
    around = torch.zeros(allowed.shape).scatter(1, place, stays[:, None])
    around = around.masked_fill(~allowed, -torch.inf)
    learned = torch.softmax(around + policy(task.given), 1)
    return Categorical((1 - settings.chance) * learned + settings.chance * torch.softmax(around, 1))


def _drawn(
    chances: Categorical, task: PolicyTask, generator: torch.Generator, samples: int
) -> list[tuple[int, ...]]:
    """At most so many that were not drawn before; they now were."""
    drawn: Tensor = torch.multinomial(
        chances.probs, REDRAWN * samples, replacement=True, generator=generator
    )
    new = [each for each in dict.fromkeys(map(tuple, drawn.T.tolist())) if each not in task.drawn]
    task.drawn.update(new[:samples])
    return new[:samples]


def _advantages(task: PolicyTask, rewards: Tensor) -> Tensor:
    """Rewards above the moving baseline, in moving spreads around it, which both move on."""
    mean = float(rewards.mean())
    baseline = mean if task.baseline is None else task.baseline
    above = rewards - baseline
    spread = float(above.abs().mean())
    decay = task.settings.decay
    task.baseline = decay * baseline + (1 - decay) * mean
    task.spread = decay * (task.spread or spread) + (1 - decay) * spread
    return (above / max(task.spread, 1e-6)).clamp(-MOST_ADVANTAGE, MOST_ADVANTAGE)


def _rewards(task: PolicyTask, actions: Sequence[tuple[int, ...]]) -> list[float]:
    """Also keeps the best."""
    made = [_strategy(task, each) for each in actions]
    possible = [strategy for strategy in made if strategy is not None]
    judged = iter(task.judge.judge(possible) if possible else [])
    rewards = []
    for each, strategy in zip(actions, made, strict=True):
        if strategy is None:
            rewards.append(INFEASIBLE)
            continue
        found = next(judged)
        if found.improves(task.best):
            task.best, task.chosen = found, each
        rewards.append(found.reward(task.base.step_seconds))
    return rewards


def _strategy(task: PolicyTask, actions: Sequence[int]) -> Strategy | None:
    """None where no strategy can be so."""
    base, sets = task.base.strategy, task.actions.sets
    strategy = strategy_of_actions(task.domain, base, task.groups, sets, actions)
    try:
        verify(strategy, task.domain, allow_lossy=True)
    except InvalidStrategy:
        return None
    return strategy
