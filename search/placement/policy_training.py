"""A policy learned by REINFORCE with a moving baseline (HeteroG, section 4.1.3): one more proposer,
with a budget of predictions."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributions import Categorical

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.search.placement.operation_groups import OperationGroups, group_operations
from autosync.search.placement.placeable_modules import PlaceableModule, modules_to_place
from autosync.search.placement.placement_actions import allowed_actions, strategy_of_actions
from autosync.search.placement.placement_judge import JudgedPlacement, PlacementJudge, Stop, no_stop
from autosync.search.placement.policy_network import PlacementPolicy, PolicyInput
from autosync.simulator.simulator_contract import Simulator
from autosync.strategy import Strategy
from autosync.verification import verify

INFEASIBLE = -20.0
"""Reward of choices that no strategy can have, such as every variable on some ranks only: below
that of what runs out of memory at the base's time (-10)."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """groups: the most; the paper's 2,000 are for graphs of TensorFlow operations. samples: of each
    round. entropy: its weight in the objective, at the beginning; it falls to zero with the budget.
    baseline_decay: of the moving average of rewards. uneven_shares: of the batch, may be chosen.
    servers: parameter servers may."""

    groups: int = 48
    samples: int = 8
    learning_rate: float = 2e-3
    entropy: float = 0.02
    baseline_decay: float = 0.8
    seed: int = 0
    uneven_shares: bool = True
    servers: bool = True


@dataclass(slots=True)
class PolicyTask:
    """A domain to place, and what has been found so far. curve: after each round, evaluations and
    the best seconds."""

    judge: PlacementJudge
    base: JudgedPlacement
    groups: OperationGroups
    blocks: tuple[PlaceableModule, ...]
    given: PolicyInput
    best: JudgedPlacement
    settings: PolicySettings
    baseline: float | None = None
    curve: list[tuple[int, float]] = field(default_factory=list)

    @property
    def domain(self) -> Domain:
        return self.judge.domain


def policy_task(
    domain: Domain,
    simulator: Simulator,
    base: Strategy,
    settings: PolicySettings,
    stop: Stop = no_stop,
) -> PolicyTask:
    """base: a strategy without a placement, whose all-reduces all others keep."""
    judge = PlacementJudge(domain, simulator, stop)
    found = judge.judge([base])[0]
    groups = group_operations(domain, settings.groups)
    given = PolicyInput.of(groups, torch.from_numpy(allowed_actions(domain, settings.servers)))
    return PolicyTask(judge, found, groups, modules_to_place(domain), given, found, settings)


def train_policy(
    policy: PlacementPolicy, tasks: Sequence[PolicyTask], budget: int, settings: PolicySettings
) -> None:
    """In place, until the tasks have had `budget` more evaluations together, round by round, or one
    of them is stopped."""
    generator = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
    start = spent = sum(task.judge.evaluations for task in tasks)
    number = 0
    while spent < start + budget:
        task = tasks[number % len(tasks)]
        if task.judge.stop():
            return
        number += 1
        left = 1.0 - (spent - start) / budget
        chances = Categorical(logits=policy(task.given))
        actions = [_drawn(chances, generator) for _ in range(settings.samples)]
        rewards = torch.tensor(_rewards(task, actions))
        mean = float(rewards.mean())
        baseline = mean if task.baseline is None else task.baseline
        advantage = rewards - baseline
        decay = settings.baseline_decay
        task.baseline = decay * baseline + (1 - decay) * mean
        chosen = torch.stack([chances.log_prob(each).sum() for each in actions])
        objective = (chosen * advantage).mean() / task.groups.count**0.5
        objective = objective + left * settings.entropy * chances.entropy().mean()
        optimizer.zero_grad()
        (-objective).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        spent = max(spent + 1, sum(each.judge.evaluations for each in tasks))
        task.curve.append((task.judge.evaluations, task.best.step_seconds))


def learned_placement(
    domain: Domain,
    simulator: Simulator,
    base: Strategy,
    budget: int = 400,
    policy: PlacementPolicy | None = None,
    settings: PolicySettings | None = None,
    stop: Stop = no_stop,
) -> JudgedPlacement:
    """The best that a policy found in so many evaluations, `base` among them, and before `stop`.
    policy: pretrained, fine-tuned here in place; by default a new one."""
    settings = settings or PolicySettings()
    task = policy_task(domain, simulator, base, settings, stop)
    with torch.random.fork_rng(devices=[]):  # a training job's own states stay what they are
        torch.manual_seed(settings.seed)
        train_policy(policy or PlacementPolicy(), [task], budget, settings)
    return task.best


def _drawn(chances: Categorical, generator: torch.Generator) -> Tensor:
    drawn: Tensor = torch.multinomial(chances.probs, 1, replacement=True, generator=generator)
    return drawn[:, 0]


def _rewards(task: PolicyTask, actions: Sequence[Tensor]) -> list[float]:
    """Also keeps the best."""
    made: list[Strategy | None] = []
    for each in actions:
        try:
            strategy = strategy_of_actions(
                task.domain,
                task.base.strategy,
                task.groups,
                task.blocks,
                each.tolist(),
                task.settings.uneven_shares,
            )
            verify(strategy, task.domain, allow_lossy=True)
            made.append(strategy)
        except InvalidStrategy:
            made.append(None)
    possible = [strategy for strategy in made if strategy is not None]
    judged = iter(task.judge.judge(possible) if possible else [])
    rewards = []
    for each_made in made:
        if each_made is None:
            rewards.append(INFEASIBLE)
            continue
        found = next(judged)
        if found.rank < task.best.rank:
            task.best = found
        rewards.append(found.reward(task.base.step_seconds))
    return rewards
