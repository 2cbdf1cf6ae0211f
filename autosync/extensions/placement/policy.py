"""HeteroG's policy: graph attention over operations, a sum over each group, attention among groups,
and a score of each choice (section 4.1). Imported only where it is used: torch-geometric takes
seconds to load.

Sets of devices are scored by what they are, not by their number, so that one policy serves clusters
of any size. Smaller than the paper's (12 layers of 8 heads, 8 layers of Transformer-XL): it trains
on two processor cores.

A policy learned by REINFORCE with a moving baseline (HeteroG, section 4.1.3): one more proposer,
with a budget of predictions.

What differs from the paper, so that hundreds of predictions do and not tens of thousands: a round
draws around the best that was found, where most groups stay as they are, and nothing twice; how
many change follows how often that is better; rewards are measured by their spread, so that the
weight of the entropy means the same for every model; and the policy sees what memory is left.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import log

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.extensions.placement.policy_actions import (
    GROUP_FEATURES,
    NODE_FEATURES,
    PLACE_FEATURES,
    SCHEMES,
    OperationGroups,
    PlacementActions,
    group_operations,
    placement_actions,
    strategy_of_actions,
)
from autosync.extensions.placement.proposals import (
    JudgedPlacement,
    PlacementJudge,
)
from autosync.search.extension_proposals import Stop, no_stop
from autosync.simulator.simulator_contract import Simulator
from autosync.strategy import Strategy
from autosync.verification import verify

with warnings.catch_warnings():
    # torch-geometric 2.8 calls torch.jit.script, which torch 2.13 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import GATConv

MEMORY_FEATURES = 2
"""Of a group and of a set of devices: room that is left, which changes with what is placed."""


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """Tensors of `OperationGroups` and `PlacementActions`. group_memory, set_memory: f32[groups or
    sets, MEMORY_FEATURES]."""

    nodes: Tensor
    edges: Tensor
    group: Tensor
    groups: Tensor
    sets: Tensor
    group_memory: Tensor
    set_memory: Tensor

    @classmethod
    def of(cls, groups: OperationGroups, actions: PlacementActions) -> "PolicyInput":
        """Of devices without limits."""
        return cls(
            torch.from_numpy(groups.nodes),
            torch.from_numpy(groups.edges),
            torch.from_numpy(groups.group),
            torch.from_numpy(groups.features),
            torch.from_numpy(actions.features),
            torch.zeros(groups.count, MEMORY_FEATURES),
            torch.zeros(len(actions.sets), MEMORY_FEATURES),
        )


@dataclass(frozen=True, slots=True)
class PolicySizes:
    """width: of embeddings, divisible by heads. layers: of graph attention. among: of attention
    among groups."""

    width: int = 64
    heads: int = 4
    layers: int = 2
    among: int = 1


class PlacementPolicy(nn.Module):
    """All scores of a new one are zero: what it draws is what is drawn around, and chance."""

    def __init__(self, sizes: PolicySizes | None = None) -> None:
        super().__init__()
        self.sizes = sizes or PolicySizes()
        width, heads = self.sizes.width, self.sizes.heads
        self.encoder = nn.Linear(NODE_FEATURES, width)
        self.attention = nn.ModuleList(
            GATConv(width, width // heads, heads, add_self_loops=False)
            for _ in range(self.sizes.layers)
        )
        self.pool = nn.Linear(width, width)
        self.own = nn.Linear(GROUP_FEATURES + MEMORY_FEATURES, width)
        block = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, batch_first=True)
        self.among = nn.TransformerEncoder(block, self.sizes.among, enable_nested_tensor=False)
        self.query = nn.Linear(width, width)
        self.place = nn.Linear(PLACE_FEATURES + MEMORY_FEATURES, width)
        self.score = nn.Linear(width, 1)
        self.schemes = nn.Linear(width, SCHEMES)
        for last in (self.score, self.schemes):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, given: PolicyInput) -> Tensor:
        """Scores of each group's actions, `(groups, sets + SCHEMES)`."""
        states = torch.relu(self.encoder(given.nodes))
        for layer in self.attention:
            states = states + nn.functional.elu(layer(states, given.edges))
        count = len(given.groups)
        sizes = torch.bincount(given.group, minlength=count).clamp(min=1)
        pooled = states.new_zeros(count, states.shape[1])
        pooled = pooled.index_add(0, given.group, self.pool(states)) / sizes.sqrt()[:, None]
        own = self.own(torch.cat([given.groups, given.group_memory], 1))
        embedded = self.among(torch.relu(pooled + own)[None])[0]
        sets = self.place(torch.cat([given.sets, given.set_memory], 1))
        met = torch.relu(self.query(embedded)[:, None] + sets[None])
        return torch.cat([self.score(met)[..., 0], self.schemes(embedded)], dim=1)


INFEASIBLE = -20.0
"""Reward of choices that no strategy can have, such as every variable on some ranks only: that of
twice the devices' memory."""

REDRAWN = 4
"""Times the samples of a round that are drawn for some that were not drawn before."""

SUCCESSES, WIDER, NARROWER = 0.2, 1.5, 0.9
"""Where more than a fifth of a round's samples are better than the best before it, the next changes
more groups, else fewer (Rechenberg's rule for evolution strategies)."""

MOST_ROOM = 2.0
"""In a replica's bytes of variables: more memory, left or lacking, says no more to the policy."""

MOST_ADVANTAGE = 3.0
"""Spreads from the baseline, beyond which a sample weighs no more: one that runs out of memory does
not drown the others."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """groups: the most; the paper's 2,000 are for graphs of TensorFlow operations. samples: of each
    round. changes: groups that chance alone changes in a sample of the first round. chance: the
    share of draws that it is left with whatever the policy has learned. entropy: its weight in the
    objective, at the beginning; it falls to zero with the budget. decay: of the moving baseline,
    and of the spread around it. uneven_shares: samples may be dealt by speed. servers: may hold
    variables.
    """

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
    """A domain to place, and what has been found so far. chosen: the actions of the best. changes:
    groups that chance alone changes in a sample. drawn: all that were tried. curve: after each
    round, evaluations and the best."""

    judge: PlacementJudge
    base: JudgedPlacement
    groups: OperationGroups
    actions: PlacementActions
    given: PolicyInput
    settings: PolicySettings
    best: JudgedPlacement
    chosen: tuple[int, ...]
    changes: float
    drawn: set[tuple[int, ...]] = field(default_factory=set)
    baseline: float | None = None
    spread: float = 0.0
    curve: list[tuple[int, JudgedPlacement]] = field(default_factory=list)

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
    """base: a strategy without a placement, whose replicas and messages all else keeps."""
    judge = PlacementJudge(domain, simulator, stop)
    found = judge.judge([base])[0]
    groups = group_operations(domain, settings.groups)
    actions = placement_actions(domain, base, groups, settings.uneven_shares, settings.servers)
    chosen = (actions.follow,) * groups.count
    given = PolicyInput.of(groups, actions)
    return PolicyTask(
        judge,
        found,
        groups,
        actions,
        given,
        settings,
        best=found,
        chosen=chosen,
        changes=settings.changes,
        drawn={chosen},
    )


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
    policy: fine-tuned here in place; by default a new one."""
    settings = settings or PolicySettings()
    task = policy_task(domain, simulator, base, settings, stop)
    with torch.random.fork_rng(devices=[]):  # a training job's own states stay what they are
        torch.manual_seed(settings.seed)
        train_policy(policy or PlacementPolicy(), [task], budget - 1, settings)
    return task.best


def train_policy(
    policy: PlacementPolicy, tasks: Sequence[PolicyTask], budget: int, settings: PolicySettings
) -> None:
    """In place, round by round, until the tasks have had `budget` more evaluations together,
    nothing new is drawn, or one of them is stopped."""
    generator = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate)
    left, waiting = budget, [task for task in tasks if task.groups.count]
    while left > 0 and waiting:
        task = waiting.pop(0)
        if task.judge.stop():
            return
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
    imitated: tuple[int, ...] | None = None,
) -> int:
    """One step of the policy; how many choices were tried. imitated: choices that are known to be
    good, which also get likelier."""
    chances = chances_of(policy, task)
    actions = _drawn(chances, task, generator, samples)
    if not actions:
        return 0
    before = task.best
    found = _judged(task, actions)
    advantages = _advantages(task, torch.tensor([_reward(task, each) for each in found]))
    better = sum(each is not None and each.improves(before) for each in found)
    rate = WIDER if better > SUCCESSES * len(found) else NARROWER
    task.changes = min(max(1.0, rate * task.changes), max(1.0, task.groups.count / 2))
    chosen = torch.stack([chances.log_prob(torch.tensor(each)).sum() for each in actions])
    objective = (chosen * advantages).mean() / task.groups.count**0.5
    objective = objective + entropy * chances.entropy().mean()
    if imitated is not None:
        objective = objective + chances.log_prob(torch.tensor(imitated)).mean()
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
    stays = log(max(1.0, task.groups.count / task.changes - 1)) + others.clamp(min=1).log()
    place = torch.tensor(task.chosen)[:, None]
    around = torch.zeros(allowed.shape).scatter(1, place, stays[:, None])
    around = around.masked_fill(~allowed, -torch.inf)
    learned = torch.softmax(around + policy(_seen(task)), 1)
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


def _seen(task: PolicyTask) -> PolicyInput:
    """With the memory that the best leaves: on all ranks, on each group's own and on each set's."""
    unit = task.domain.graph.size_bytes * MOST_ROOM
    free = np.clip(np.array(task.best.free_bytes) / unit, -1.0, 1.0)
    sets = np.array([free[list(ranks)].min() for ranks in task.actions.sets])
    own = [float(sets[each]) if each < len(sets) else float(free.min()) for each in task.chosen]
    groups = np.stack([np.full(len(own), free.min()), np.array(own)], 1)
    lacking = np.stack([sets, sets < 0], 1)
    return replace(
        task.given,
        group_memory=torch.from_numpy(groups.astype(np.float32)),
        set_memory=torch.from_numpy(lacking.astype(np.float32)),
    )


def _judged(task: PolicyTask, actions: Sequence[tuple[int, ...]]) -> list[JudgedPlacement | None]:
    """None where no strategy can be so. Also keeps the best."""
    made = [_strategy(task, each) for each in actions]
    possible = [strategy for strategy in made if strategy is not None]
    judged = iter(task.judge.judge(possible) if possible else [])
    found = [None if strategy is None else next(judged) for strategy in made]
    for each, one in zip(actions, found, strict=True):
        if one is not None and one.improves(task.best):
            task.best, task.chosen = one, each
    return found


def _reward(task: PolicyTask, found: JudgedPlacement | None) -> float:
    return INFEASIBLE if found is None else found.reward(task.base.step_seconds)


def _strategy(task: PolicyTask, actions: Sequence[int]) -> Strategy | None:
    """None where no strategy can be so."""
    base, sets = task.base.strategy, task.actions.sets
    strategy = strategy_of_actions(task.domain, base, task.groups, sets, actions)
    try:
        verify(strategy, task.domain, allow_lossy=True)
    except InvalidStrategy:
        return None
    return strategy
