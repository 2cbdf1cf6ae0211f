"""Trains a network on ranked trials of one or several domains; validation chooses the epoch."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict
from torch import Tensor, nn
from torch.nn.functional import huber_loss, softplus

from autosync.cancellation import check_cancelled
from autosync.documents import STRICT
from autosync.simulator.learned.networks.scoring_network import NetworkBatch, ScoringNetwork

SIGMA = 0.01
"""On normalised labels; AutoSync used 0.005 to 0.03."""
TEMPERATURE = 0.05
"""Scores are log seconds, in which 5 % should already be a clear difference."""


def slower_pairs(labels: Tensor, shard_counts: Tensor, sigma: float = SIGMA) -> Tensor:
    """bool[n, n]: whether strategy i counts as slower than j.

    labels: seconds over their median. shard_counts: of each strategy; of two within sigma of each
    other the one cut into more counts as slower, for the overhead that cutting always has.
    """
    penalty = sigma * torch.sign(shard_counts[:, None] - shard_counts[None, :])
    return labels[:, None] + penalty > labels[None, :]


def ranking_loss(
    scores: Tensor,
    labels: Tensor,
    shard_counts: Tensor,
    sigma: float = SIGMA,
    temperature: float = TEMPERATURE,
) -> Tensor:
    """The mean over all pairs that count, a scalar; 0 where none does."""
    slower = slower_pairs(labels, shard_counts, sigma)
    margins = softplus((scores[None, :] - scores[:, None]) / temperature)
    return (margins * slower).sum() / slower.sum().clamp(min=1)


CORRECTION = 0.1
"""Log seconds that a network's output of 1 stands for."""
BEND = 2.0
"""Misses, in units of CORRECTION, beyond which they count linearly: a few strategies take several
times what the timeline predicts, and would outweigh the rest."""
NETWORK_CHUNK = 32
"""Strategies that a network reads together where it does not learn; bounds memory."""


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Weight decay, the factor of the rate's decay and sigma are AutoSync's (supplement, section
    10; its published sources); the rest was chosen here, on trials. AutoSync trains for 200 epochs
    at 1e-3, decayed at the 80th and 160th, clips at 0.25, and has the ranking loss alone.

    regression: weight of the Huber loss of the residuals beside the ranking loss, which does not
    depend on pairs that the timeline ranks rightly already. clip: of the gradient's norm.
    batch_strategies: of a step. validation: share of the sources' trials that choose the epoch of
    a network trained on several domains. patience: epochs without a better one after which
    training stops. decay_at: epochs after which the rate falls to its `decay`-fold.
    """

    epochs: int = 40
    learning_rate: float = 2e-3
    weight_decay: float = 3e-4
    clip: float = 1.0
    decay: float = 0.3
    decay_at: tuple[int, ...] = (20, 32)
    sigma: float = SIGMA
    temperature: float = TEMPERATURE
    regression: float = 1.0
    batch_strategies: int = 16
    validation: float = 0.15 / 0.85
    patience: int = 8
    seed: int = 0
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class RankedTrials:
    """Measured strategies of one domain, ready for a network.

    batch: all of them. base f32[n]: log seconds of the simulator that is corrected, 0 for none.
    target f32[n]: what the network should output, in units of CORRECTION; its median is 0.
    labels f32[n]: seconds over their median. shard_counts f32[n]: shards of each strategy.
    """

    batch: NetworkBatch
    base: Tensor
    target: Tensor
    labels: Tensor
    shard_counts: Tensor

    def __len__(self) -> int:
        return len(self.base)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on a single thread. The matrices are small: a second thread gains nothing, waits long
    on a busy machine, and would make sums depend on how many cores there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def subset(batch: NetworkBatch, strategies: NDArray[np.int64]) -> NetworkBatch:
    """The batch of these strategies only, in their order."""
    chosen = torch.from_numpy(np.asarray(strategies))
    first = torch.searchsorted(batch.strategy, torch.arange(len(batch.summary) + 1))
    counts = first[chosen + 1] - first[chosen]
    shift = first[chosen] - (torch.cumsum(counts, 0) - counts)
    rows = torch.arange(int(counts.sum())) + shift.repeat_interleave(counts)
    return batch._replace(
        values=batch.values[rows],
        summary=batch.summary[chosen],
        strategy=torch.arange(len(chosen)).repeat_interleave(counts),
        place=batch.place[rows],
        node=batch.node[rows],
    )


def select(trials: RankedTrials, strategies: NDArray[np.int64]) -> RankedTrials:
    chosen = torch.from_numpy(np.asarray(strategies))
    return RankedTrials(
        subset(trials.batch, strategies),
        trials.base[chosen],
        trials.target[chosen],
        trials.labels[chosen],
        trials.shard_counts[chosen],
    )


@one_thread()
@torch.no_grad()
def network_output(network: ScoringNetwork, batch: NetworkBatch) -> Tensor:
    """The output for every strategy, `(n,)`, NETWORK_CHUNK of them at a time."""
    network.eval()
    every = np.arange(len(batch.summary))
    parts = np.split(every, every[NETWORK_CHUNK::NETWORK_CHUNK])
    return torch.cat([_part_output(network, batch, part) for part in parts])


def _part_output(network: ScoringNetwork, batch: NetworkBatch, part: NDArray[np.int64]) -> Tensor:
    check_cancelled()
    output: Tensor = network(subset(batch, part))
    return output


@one_thread()
def train(
    network: ScoringNetwork,
    learn: Sequence[RankedTrials],
    held_out: Sequence[RankedTrials],
    training: TrainingSettings,
) -> int:
    """Adam on ranking and residuals; leaves the network as it was at the chosen epoch, and returns
    which that is.

    held_out: trials that choose the epoch and are never learned from; epoch 0, the network as it
    came, is among the choices.
    """
    rng = np.random.default_rng(training.seed)
    optimizer = torch.optim.Adam(
        network.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay
    )
    schedule = torch.optim.lr_scheduler.MultiStepLR(
        optimizer, list(training.decay_at), training.decay
    )
    best, best_state = 0, _state(network)
    least = _judge(network, held_out, training)
    for epoch in range(1, training.epochs + 1):
        _learn_once(network, learn, optimizer, training, rng)
        schedule.step()
        if (loss := _judge(network, held_out, training)) < least:
            least, best, best_state = loss, epoch, _state(network)
        if epoch - best >= training.patience:
            break
    network.load_state_dict(best_state)
    network.eval()
    _return_freed_memory()
    return best


def _learn_once(
    network: ScoringNetwork,
    learn: Sequence[RankedTrials],
    optimizer: torch.optim.Optimizer,
    training: TrainingSettings,
    rng: np.random.Generator,
) -> None:
    """One epoch: the domains in random order, a step holds strategies of one domain."""
    network.train()
    for domain in rng.permutation(len(learn)):
        trials = learn[domain]
        order = rng.permutation(len(trials))
        steps = max(1, round(len(order) / training.batch_strategies))
        for strategies in np.array_split(order, steps):
            check_cancelled()
            some = select(trials, strategies)
            optimizer.zero_grad()
            torch.autograd.backward(_loss(network(some.batch), some, training))
            nn.utils.clip_grad_norm_(network.parameters(), training.clip)
            optimizer.step()


def _judge(
    network: ScoringNetwork, held_out: Sequence[RankedTrials], training: TrainingSettings
) -> float:
    """The mean loss of the held-out strategies, each domain's within itself."""
    losses = [_loss(network_output(network, trials.batch), trials, training) for trials in held_out]
    return float(np.mean([float(loss) for loss in losses]))


def _loss(corrections: Tensor, trials: RankedTrials, training: TrainingSettings) -> Tensor:
    """corrections f32[n]: a network's output."""
    ranking = ranking_loss(
        trials.base + CORRECTION * corrections,
        trials.labels,
        trials.shard_counts,
        training.sigma,
        training.temperature,
    )
    return ranking + training.regression * huber_loss(corrections, trials.target, delta=BEND)


def _return_freed_memory() -> None:
    """Give freed memory of the many small tensors back to the system: glibc holds it for this
    thread, while those that rank next allocate elsewhere (BERT-large, 150 trials: 0.15 GB)."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def _state(network: ScoringNetwork) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
