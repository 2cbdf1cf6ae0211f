"""Small real models that benchmarks train on the CPU: where compute fights for the cores."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autosync.bundle import Bundle
from autosync.cluster import Cluster
from autosync.domain import Domain, Optimizer
from autosync.importing import import_module
from autosync.profiling import profile_from_step_seconds
from autosync.trials.contract import Workload
from autosync.trials.worker.training_job import make_optimizer

BATCH, TOKENS, WIDTH, LAYERS, WORDS = 8, 32, 256, 6, 4000
PIXELS, CLASSES = 32, 100


class SmallEncoder(nn.Module):
    """A transformer that predicts words: 6.8 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        hidden: Tensor = self.embedding(words)
        for layer in self.layers:
            hidden = layer(hidden)
        result: Tensor = self.head(hidden)
        return result


def convolutions() -> nn.Sequential:
    """A CNN with batch normalization: 2.8 M parameters, 24 buffers."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((3, 32, 1), (32, 64, 2), (64, 128, 2), (128, 256, 2)):
        for step in range(2):
            layers += [
                nn.Conv2d(outputs if step else inputs, outputs, 3, 1 if step else stride, 1),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]
    layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(1024, 1536), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(1536, CLASSES))


def words(seed: int) -> Tensor:
    return torch.randint(WORDS, (BATCH, TOKENS), generator=torch.Generator().manual_seed(seed))


def images(seed: int) -> Tensor:
    return torch.randn(BATCH, 3, PIXELS, PIXELS, generator=torch.Generator().manual_seed(seed))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "transformer": (SmallEncoder, words),
    "cnn": (convolutions, images),
}


def mean_square(output: Tensor, *inputs: Tensor) -> Tensor:
    return output.square().mean()


def domain_of(name: str, cluster: Cluster, step_seconds: float) -> Domain:
    """step_seconds: about; only the order of priorities depends on it."""
    build, inputs = MODELS[name]
    graph = import_module(build(), (inputs(0),), mean_square, name=name, batch_size=BATCH)
    return Domain(
        graph,
        cluster,
        profile_from_step_seconds(graph, step_seconds, "v100"),
        Optimizer("momentum"),
    )


@dataclass
class ModelJob:
    """Trains on one batch of its own, again and again."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Tensor
    scaled: bool = False

    def begin(self, key: str, bundle: Bundle) -> None:
        """Every trial trains on."""

    def loss(self, model: nn.Module) -> Tensor:
        return mean_square(model(self.batch))


def build_model(workload: Workload, rank: int) -> ModelJob:
    """The model that the domain's graph is named after."""
    build, inputs = MODELS[workload.domain.graph.name]
    torch.manual_seed(0)
    model = build()
    return ModelJob(model, make_optimizer(workload.domain.optimizer.name, model), inputs(rank))
