"""An attachment that fails half way leaves nothing behind."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from autosync.errors import AutosyncError
from autosync.extensions.staleness.document import late_by
from autosync.runtime import attachment
from autosync.runtime.transport.process_groups import Groups, open_groups
from tests.autosync.runtime.cases import Case, attached, loss_of, make_model, make_optimizer, plan
from tests.autosync.runtime.distributing import refusal
from tests.autosync.runtime.ranks import Ranks


class Stubborn(nn.Linear):
    """Refuses one of the last hooks that an attachment installs."""

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> Any:
        raise TypeError("no hooks on this module")


class OwnRule(torch.optim.SGD):
    """No optimizer of torch's own, so that parts of variables cannot be updated."""


def stubborn(model: nn.Module) -> torch.optim.Optimizer:
    assert isinstance(model, nn.Sequential)
    last = model[4]
    assert isinstance(last, nn.Linear)
    model[4] = Stubborn(last.in_features, last.out_features, bias=False)
    return make_optimizer("sgd", model)


def own_rule(model: nn.Module) -> torch.optim.Optimizer:
    return OwnRule(model.parameters(), lr=0.1, momentum=0.9)


BREAKS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "optimizer": own_rule,
    "hook": stubborn,
}
WORDS = {"optimizer": "which optimizer OwnRule does not allow", "hook": "no hooks on this module"}


def left_behind(
    rank: int, world: int, what: str, method: str, culprits: tuple[int, ...] = (0, 1)
) -> tuple[str, list[str]]:
    """The words in which an attachment is refused that fails on the culprits alone, and what it
    leaves on model, optimizer and process."""
    model = make_model("mlp")
    optimizer = BREAKS[what](model) if rank in culprits else make_optimizer("sgd", model)
    loss_of(model, 0, rank).backward()
    optimizer.step()  # so that there is state to lose
    optimizer.zero_grad()
    kind, state = type(optimizer), dict(optimizer.state)
    opened: list[Groups] = []

    def remembered(*given: Any) -> Groups:
        opened.append(open_groups(*given))
        return opened[-1]

    attachment.__dict__["open_groups"] = remembered
    threads = set(threading.enumerate())
    names = tuple(name for name, _ in model.named_parameters())
    made = plan(Case(method=method), model, world)
    said = "nothing"
    try:
        attachment.attach(model, optimizer, made, names)
    except (AutosyncError, TypeError) as error:
        said = str(error)
    finally:
        attachment.__dict__["open_groups"] = open_groups
    found = [f"thread {thread.name}" for thread in set(threading.enumerate()) - threads]
    found += [f"group {name}" for groups in opened for name in groups.made]
    found += [f"hook of {name}" for name, p in model.named_parameters() if _hooked(p)]
    found += [f"hook of {name}" for name, module in model.named_modules() if _module_hooked(module)]
    if "no_sync" in model.__dict__:
        found.append("no_sync")
    if type(optimizer) is not kind:
        found.append(f"class {type(optimizer).__name__}")
    if dict(optimizer.state) != state:
        found.append("state")
    loss_of(model, 1, rank).backward()
    optimizer.step()  # of the script's own optimizer: nobody is waited for
    return said, found


def _hooked(parameter: nn.Parameter) -> bool:
    return bool(parameter._post_accumulate_grad_hooks)


def _module_hooked(module: nn.Module) -> bool:
    registries = (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._state_dict_pre_hooks,
        module._load_state_dict_pre_hooks,
    )
    return any(len(registry) for registry in registries)


@pytest.mark.parametrize(
    ("what", "method"),
    [("optimizer", "zero"), ("optimizer", "ps"), ("hook", "all_reduce"), ("hook", "zero")],
)
def test_a_failed_attachment_leaves_nothing_behind(pair: Ranks, what: str, method: str) -> None:
    for said, found in pair.run(left_behind, what, method):
        assert WORDS[what] in said
        assert found == []


@pytest.mark.parametrize(("what", "method"), [("optimizer", "zero"), ("hook", "all_reduce")])
@pytest.mark.parametrize("culprit", [0, 1])
def test_no_rank_attaches_where_one_cannot(
    pair: Ranks, what: str, method: str, culprit: int
) -> None:
    """The other does not wait for groups that this one never opens."""
    answers = pair.run(left_behind, what, method, (culprit,))
    assert WORDS[what] in answers[culprit][0]
    assert answers[1 - culprit][0].startswith(f"rank {culprit} cannot begin: ")
    assert WORDS[what] in answers[1 - culprit][0]
    assert [found for _, found in answers] == [[], []]


def trains(rank: int, world: int) -> bool:
    model, optimizer, made = attached(Case(method="zero"), world)
    loss_of(model, 0, rank).backward()
    optimizer.step()
    made.detach()
    return type(optimizer) is torch.optim.SGD


def test_another_plan_attaches_where_one_has_failed(pair: Ranks) -> None:
    pair.run(left_behind, "hook", "zero")
    assert pair.run(trains) == [True, True]


def stale(rank: int, world: int) -> str:
    model = make_model("mlp")
    names = tuple(name for name, _ in model.named_parameters())
    made = replace(plan(Case(), model, world), extensions=late_by(2))
    return refusal(lambda: attachment.attach(model, make_optimizer("sgd", model), made, names))


def test_a_stale_plan_is_refused_on_every_rank(pair: Ranks) -> None:
    for words in pair.run(stale):
        assert "this engine runs exact plans only" in words
