"""What is said of optimizers by name is what torch's own do."""

import pytest
import torch
from torch import nn

from autosync.api.cli.domain_arguments import ProfileChoice, load_domain
from autosync.domain import Optimizer, optimizer_named, usual_optimizer
from autosync.errors import InvalidInput
from autosync.importing import import_module
from autosync.models import bundled
from autosync.optimizers import KINDS, OPTIMIZERS
from autosync.runtime.updates.optimizers import ELEMENTWISE
from autosync.search.designs.design_table import DESIGNS
from autosync.simulator.memory.memory_check import most_peak_bytes
from autosync.trials.worker.training_job import make_optimizer


def test_every_name_has_its_kind() -> None:
    assert set(KINDS) == set(OPTIMIZERS)
    assert optimizer_named("sgd_momentum") == Optimizer()
    with pytest.raises(InvalidInput, match="nobody here knows an optimizer 'lamb'") as caught:
        optimizer_named("lamb")
    assert "adamw" in str(caught.value.remedy)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_is_what_torchs_optimizer_keeps(name: str) -> None:
    module = nn.Linear(8, 8, bias=False)
    optimizer = make_optimizer(name, module)
    assert optimizer.param_groups[0]["params"] == [module.weight]
    module(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    state = optimizer.state[module.weight].values()
    whole = [v for v in state if isinstance(v, torch.Tensor) and v.shape == module.weight.shape]
    assert KINDS[name].state_tensors == len(whole)
    assert KINDS[name].elementwise == (type(optimizer) in ELEMENTWISE)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sparse_gradients_are_taken_or_not(name: str) -> None:
    module = nn.Embedding(8, 4, sparse=True)
    if not KINDS[name].takes_sparse:
        with pytest.raises(InvalidInput, match=f"{name} takes no sparse gradients"):
            make_optimizer(name, module, sparse=True)
        return
    optimizer = make_optimizer(name, module, sparse=True)
    module(torch.tensor([1, 2])).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *[(model, "adamw") for model in ("bert_3l", "gpt2", "llama_1b", "vit_large")],
        *[(model, "adamw") for model in ("transformer", "xlnet_large")],
        *[(model, "sgd_momentum") for model in ("resnet50", "vgg16", "mobilenet_v2", "lm1b")],
        *[(model, "sgd_momentum") for model in ("ncf_dense", "ncf_sparse", "dlrm")],
    ],
)
def test_the_usual_optimizer_of_a_model(model: str, name: str) -> None:
    assert usual_optimizer(bundled(model)) == optimizer_named(name)


def test_a_command_takes_the_usual_or_the_one_that_is_named() -> None:
    def of(optimizer: str | None, model: str = "bert_3l") -> Optimizer:
        return load_domain(model, "example-4x1", None, ProfileChoice(), optimizer).optimizer

    assert of(None) == optimizer_named("adamw")
    assert of("sgd") == Optimizer("sgd", True, 0)
    with pytest.raises(InvalidInput, match="adamw takes no sparse gradients"):
        of("adamw", "ncf_sparse")


def test_state_counts_as_memory() -> None:
    """Each tensor that an optimizer keeps is one model more on every rank of DDP."""
    peaks = {}
    for name in ("sgd", "sgd_momentum", "adamw"):
        domain = load_domain("resnet50", "example-4x1", None, ProfileChoice(), name)
        strategy = DESIGNS["ddp"](domain)
        peaks[name] = most_peak_bytes(domain, [strategy])[0]
    size = bundled("resnet50").size_bytes
    assert peaks["sgd_momentum"] - peaks["sgd"] == pytest.approx(size)
    assert peaks["adamw"] - peaks["sgd"] == pytest.approx(2 * size)


def test_attention_over_a_sparse_embedding_keeps_to_what_takes_sparse_gradients() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.word = nn.Embedding(30, 8, sparse=True)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            x = self.word(words)
            return torch.mean(torch.softmax(x @ x.transpose(1, 2), -1) @ x)

    words = (torch.zeros(4, 5, dtype=torch.long),)
    graph = import_module(Attending(), words, None, name="sparse", batch_size=4)
    assert usual_optimizer(graph) == optimizer_named("sgd_momentum")
