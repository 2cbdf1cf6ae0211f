"""The optimizers that requests may name are those that a replay makes."""

import pytest
from torch import nn

from autosync.errors import InvalidInput
from autosync.trials.request_names import DENSE_OPTIMIZERS, OPTIMIZERS
from autosync.trials.worker.training_job import make_optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_a_request_is_made(name: str) -> None:
    model = nn.Linear(2, 2)
    assert make_optimizer(name, model).param_groups[0]["params"] == list(model.parameters())
    if name in DENSE_OPTIMIZERS:
        with pytest.raises(InvalidInput, match="no sparse gradients"):
            make_optimizer(name, model, sparse=True)
