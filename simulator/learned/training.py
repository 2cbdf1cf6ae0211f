"""Trains a network on ranked trials of one or several domains; validation chooses the epoch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict
from torch import Tensor, nn

from autosync.documents import STRICT
from simulator.learned.networks import Batch, Network
from simulator.learned.ranking import (
    SIGMA,
    TEMPERATURE,
    pair_errors,
    pair_losses,
    ranking_loss,
    slower_pairs,
)

CORRECTION = 0.1
"""Log seconds that a network's output of 1 stands for."""


@dataclass(frozen=True, slots=True)
class Training:
    """AutoSync's settings (supplement, section 10; its published sources), where nothing else is
    said. decay_at: epochs after which the rate falls by `decay`.

    batch_strategies: of a step. validation: share of the trials kept out to choose the epoch; of
    the 85 % that are not test it makes the papers' 70/15/15.
    patience: epochs without a better one after which training stops.
    confidence: standard errors by which the chosen epoch must misrank fewer pairs of the trials
    kept out than epoch 0 (pairs, since a few large losses would hide the rest).
    """

    epochs: int = 200
    learning_rate: float = 1e-3
    weight_decay: float = 3e-4
    clip: float = 0.25
    decay: float = 0.3
    decay_at: tuple[int, ...] = (80, 160)
    sigma: float = SIGMA
    temperature: float = TEMPERATURE
    batch_strategies: int = 64
    validation: float = 0.15 / 0.85
    patience: int = 25
    confidence: float = 2.0
    seed: int = 0
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class Trials:
    """Measured strategies of one domain, ready for a network.

    batch: all of them. base f32[n]: log seconds of the simulator that is corrected, 0 for none.
    labels f32[n]: seconds over their median. partitions f32[n]: shards.
    """

    batch: Batch
    base: Tensor
    labels: Tensor
    partitions: Tensor

    def __len__(self) -> int:
        return len(self.base)

    def scores(self, network: Network) -> Tensor:
        result: Tensor = self.base + CORRECTION * network(self.batch)
        return result


@dataclass(frozen=True, slots=True)
class Trained:
    """epoch: that was kept, 0 where training did not help. losses: on the trials kept out, by
    epoch from 0 on."""

    epoch: int
    losses: tuple[float, ...]


@contextmanager
def one_thread() -> Iterator[None]:
    """The matrices are small: a second thread wins nothing, waits long on a busy machine, and
    would make sums depend on how many cores there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def subset(batch: Batch, strategies: NDArray[np.int64]) -> Batch:
    """The batch of these strategies only."""
    chosen = torch.from_numpy(np.asarray(strategies))
    place = torch.full((len(batch.summary),), -1, dtype=torch.int64)
    place[chosen] = torch.arange(len(chosen))
    kept = place[batch.strategy] >= 0
    portion = torch.cumsum(kept, 0) - 1
    edges = batch.edges
    if edges.shape[1]:
        edges = portion[edges[:, kept[edges[0]]]]
    return Batch(
        values=batch.values[kept],
        summary=batch.summary[chosen],
        strategy=place[batch.strategy[kept]],
        place=batch.place[kept],
        edges=edges,
        variables=batch.variables,
    )


def select(trials: Trials, strategies: NDArray[np.int64]) -> Trials:
    chosen = torch.from_numpy(np.asarray(strategies))
    return Trials(
        subset(trials.batch, strategies),
        trials.base[chosen],
        trials.labels[chosen],
        trials.partitions[chosen],
    )


@one_thread()
def train(
    network: Network, learn: Sequence[Trials], keep_out: Sequence[Trials], training: Training
) -> Trained:
    """Adam on the ranking loss; leaves the network as it was at the chosen epoch.

    keep_out: trials that choose the epoch and are never learned from. Epoch 0, the network as it
    came, is among the choices, and wins unless another is better beyond doubt.
    """
    rng = np.random.default_rng(training.seed)
    optimizer = torch.optim.Adam(
        network.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay
    )
    schedule = torch.optim.lr_scheduler.MultiStepLR(
        optimizer, list(training.decay_at), training.decay
    )
    initial = best_state = _state(network)
    before, errors_before = _judge(network, keep_out, training)
    best, errors, history = 0, errors_before, [before]
    for epoch in range(1, training.epochs + 1):
        _learn_once(network, learn, optimizer, training, rng)
        schedule.step()
        loss, epoch_errors = _judge(network, keep_out, training)
        if loss < min(history):
            best, best_state, errors = epoch, _state(network), epoch_errors
        history.append(loss)
        if epoch - best >= training.patience:
            break
    gain = errors_before - errors
    doubt = training.confidence * float(gain.std(correction=0)) / np.sqrt(len(gain))
    if float(gain.mean()) <= doubt:
        best, best_state = 0, initial
    network.load_state_dict(best_state)
    network.eval()
    return Trained(best, tuple(history))


def _learn_once(
    network: Network,
    learn: Sequence[Trials],
    optimizer: torch.optim.Optimizer,
    training: Training,
    rng: np.random.Generator,
) -> None:
    """One epoch: the domains in random order, a step holds strategies of one domain."""
    network.train()
    for domain in rng.permutation(len(learn)):
        trials = learn[domain]
        order = rng.permutation(len(trials))
        steps = max(1, round(len(order) / training.batch_strategies))
        for strategies in np.array_split(order, steps):
            part = select(trials, strategies)
            optimizer.zero_grad()
            loss = ranking_loss(
                part.scores(network),
                part.labels,
                part.partitions,
                training.sigma,
                training.temperature,
            )
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(network.parameters(), training.clip)
            optimizer.step()


def _judge(
    network: Network, keep_out: Sequence[Trials], training: Training
) -> tuple[float, Tensor]:
    """The mean ranking loss of the kept-out strategies, each within its domain, and the share of
    its pairs that each one's score orders wrongly."""
    network.eval()
    losses, errors = [], []
    with torch.no_grad():
        for trials in keep_out:
            scores = trials.scores(network)
            slower = slower_pairs(trials.labels, trials.partitions, training.sigma)
            losses.append(pair_losses(scores, slower, training.temperature))
            errors.append(pair_errors(scores, slower))
    return float(torch.cat(losses).mean()), torch.cat(errors)


def _state(network: Network) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
