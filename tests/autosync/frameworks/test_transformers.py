"""transformers.Trainer on a bundle, and on its own DDP."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autosync
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.attachment import Attachment
from tests.autosync.frameworks.launched import with_fresh_accelerate
from tests.autosync.runtime.cases import Case, make_model
from tests.autosync.runtime.distributing import (
    ENGINES,
    bundle_of,
    largest_difference,
    refusal,
    warned,
)
from tests.autosync.runtime.ranks import Ranks
from tests.long_parameters import long_after

EXACT = ("all-reduce", "reduce-scatter", "ddp")
"""Every rank updates all variables by torch's own step; others sum the norm in another order."""

STEPS = 4
SAVED_AT = 2
ACCUMULATED = 2
MAX_NORM = 0.5


def language_model() -> Any:
    """GPT-2 with a tied embedding, and dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(5)
    config = GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=64, n_positions=16, loss_type="ForCausalLMLoss"
    )
    return GPT2LMHeadModel(config)


def sentences(count: int) -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(64, (count, 12), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in tokens]


def make_trainer(
    folder: str,
    model: nn.Module | None = None,
    *,
    kind: Any = None,
    model_init: Any = None,
    **options: Any,
) -> Any:
    """kind: of Trainer. options: of TrainingArguments."""
    from transformers import Trainer, TrainingArguments

    arguments = {
        "use_cpu": True,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": ACCUMULATED,
        "max_steps": STEPS,
        "learning_rate": 1e-2,
        "adam_epsilon": 1e-4,  # a key's bias has a gradient of rounding errors, which less enlarges
        "max_grad_norm": MAX_NORM,
        "logging_steps": 1,
        "save_steps": SAVED_AT,
        "eval_strategy": "steps",
        "eval_steps": SAVED_AT,
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **options,
    }
    return (kind or Trainer)(
        model=None if model_init else model or language_model(),
        model_init=model_init,
        args=TrainingArguments(folder, **arguments),
        train_dataset=sentences(64),
        eval_dataset=sentences(8),
    )


def use(trainer: Any, case: Case | None, world: int) -> Any:
    if case is not None:
        from autosync.frameworks.transformers import use_bundle

        use_bundle(trainer, bundle_of(case, trainer.model, world))
    return trainer


def logged(trainer: Any, key: str) -> torch.Tensor:
    return torch.tensor([entry[key] for entry in trainer.state.log_history if key in entry])


def found(trainer: Any) -> dict[str, Any]:
    return {
        "weights": {name: value.clone() for name, value in trainer.model.state_dict().items()},
        "state": trainer.optimizer.state_dict()["state"],
        "norms": logged(trainer, "grad_norm"),
        "losses": logged(trainer, "loss"),
        "evaluated": logged(trainer, "eval_loss"),
        "rates": logged(trainer, "learning_rate"),
    }


def same_training(
    rank: int, world: int, case: Case, after: Case | None, folder: str, options: dict[str, Any]
) -> dict[str, Any]:
    """How far the training is from the Trainer's own DDP, and a resumed one from the whole. after:
    what the resumed one runs, None for the Trainer's own DDP."""
    with_fresh_accelerate(rank, world)
    theirs = make_trainer(f"{folder}/ddp", **options)
    theirs.train()
    with_fresh_accelerate(rank, world)
    ours = use(make_trainer(f"{folder}/ours", **options), case, world)
    ours.train()
    plan = ATTACHED.plans.get(id(ours.model))
    if isinstance(plan, Attachment):
        assert plan.engine.iteration.number == STEPS - 1  # from 0
    beside, whole = found(theirs), found(ours)
    assert len(whole["norms"]) == len(whole["losses"]) == STEPS
    assert len(whole["evaluated"]) == STEPS // SAVED_AT
    autosync.detach(ours.model)
    with_fresh_accelerate(rank, world)
    again = use(make_trainer(f"{folder}/again", **options), after, world)
    again.train(resume_from_checkpoint=f"{folder}/ours/checkpoint-{SAVED_AT}")
    resumed = found(again)
    if after is not None:
        autosync.detach(again.model)
    return {
        "beside DDP": largest_difference(whole, beside),
        "resumed": largest_difference(resumed, whole),
        "clipped": bool((beside["norms"] > MAX_NORM).any()),
    }


SHARDED = ENGINES["sharded"]
CASES = {
    "all-reduce": (ENGINES["all-reduce"], ENGINES["all-reduce"], {}),
    "reduce-scatter": (ENGINES["reduce-scatter"], SHARDED, {}),
    "sharded": (SHARDED, SHARDED, {}),
    "sharded, in bf16": (SHARDED, SHARDED, {"bf16": True, "max_grad_norm": 0.0}),
    "server": (ENGINES["server"], None, {}),
    "ddp": (ENGINES["ddp"], ENGINES["ddp"], {}),
}
"""By name: the training's plan, the resumed one's, and the options of both."""


@pytest.mark.parametrize("name", long_after(1, CASES))
def test_a_trainer_trains_as_on_its_own_ddp(pair: Ranks, name: str, tmp_path: Path) -> None:
    case, after, options = CASES[name]
    for found in pair.run(same_training, case, after, str(tmp_path), options):
        assert found["clipped"]
        assert found["resumed"] <= (0 if after == case else 3e-6), found
        assert found["beside DDP"] <= (0 if name in EXACT else 3e-6), found
    assert (tmp_path / "ours" / f"checkpoint-{SAVED_AT}" / "model.safetensors").is_file()


def own_trainer(rank: int, world: int, folder: str) -> float:
    """A script's own class and optimizer, the best model at the end, and training twice."""
    from transformers import Trainer

    class Doubled(Trainer):  # type: ignore[misc]
        def compute_loss(self, *given: Any, **named: Any) -> Any:
            found = super().compute_loss(*given, **named)
            return (2 * found[0], found[1]) if isinstance(found, tuple) else 2 * found

    weights = []
    for case in (None, SHARDED):
        with_fresh_accelerate(rank, world)
        model = language_model()
        name = f"{folder}/{'theirs' if case is None else 'ours'}"
        trainer = make_trainer(name, model, kind=Doubled, load_best_model_at_end=True)
        trainer.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        use(trainer, case, world)
        assert isinstance(trainer, Doubled)
        trainer.train()
        trainer.train()
        weights.append({key: value.clone() for key, value in model.state_dict().items()})
        if case is not None:
            autosync.detach(model)
    return largest_difference(*weights)


def test_a_scripts_own_trainer_trained_twice(pair: Ranks, tmp_path: Path) -> None:
    assert max(pair.run(own_trainer, str(tmp_path))) < 3e-6


def new_models(rank: int, world: int, folder: str) -> list[Any]:
    """`model_init` gives every training a new model; the plan of the last one ends."""
    from transformers import Trainer

    with_fresh_accelerate(rank, world)
    before = len(ATTACHED.plans)
    trainer = make_trainer(folder, model_init=language_model, save_strategy="no")
    assert type(trainer) is Trainer
    use(trainer, SHARDED, world)
    trainer.train()
    first = found(trainer)
    trainer.train()
    again = found(trainer)
    trainer.create_accelerator_and_postprocess()  # as each trial of a hyperparameter search does
    trainer.train()
    searched = found(trainer)
    held = len(ATTACHED.plans) - before
    autosync.detach(trainer.model)
    return [largest_difference(again, first), largest_difference(searched, first), held]


@pytest.mark.long
def test_a_new_model_for_every_training(pair: Ranks, tmp_path: Path) -> None:
    assert pair.run(new_models, str(tmp_path)) == [[0.0, 0.0, 1]] * 2


def refused(rank: int, world: int, folder: str) -> dict[str, str]:
    from autosync.frameworks.transformers import use_bundle

    found: dict[str, str] = {}
    shipped = bundle_of(SHARDED, language_model(), world)
    for name in ("without the line", "with it"):
        with_fresh_accelerate(rank, world)
        model = language_model()
        optimizer = torch.optim.AdamW(model.parameters())
        model, optimizer = autosync.distribute(model, optimizer, shipped)
        trainer = make_trainer(folder, model)
        if name == "with it":
            found[name] = refusal(lambda t=trainer: use_bundle(t, shipped))  # type: ignore[misc]
        else:
            found[name] = refusal(trainer.train)
        autosync.detach(model)
    with_fresh_accelerate(rank, world)
    trainer = make_trainer(folder, max_steps=1, save_strategy="no")
    trainer.train()
    found["late"] = refusal(lambda: use_bundle(trainer, shipped))
    with_fresh_accelerate(rank, world)
    trainer = make_trainer(folder, ddp_bucket_cap_mb=3)
    use_bundle(trainer, shipped)
    found["buckets"] = refusal(trainer.train)
    with_fresh_accelerate(rank, world)
    trainer = make_trainer(folder)
    use_bundle(trainer, shipped)
    trainer.model_wrapped = torch.compile(trainer.model, backend="eager")  # as by evaluate()
    found["compiled to evaluate"] = refusal(trainer.train)
    return found


def test_wrong_uses_are_refused_with_the_line_to_write(pair: Ranks, tmp_path: Path) -> None:
    expected = {
        "without the line": "or `use_bundle(trainer, bundle)` of autosync.frameworks.transformers",
        "with it": "call use_bundle(trainer, bundle) in place of autosync.distribute",
        "late": "Call use_bundle(trainer, bundle) before the first trainer.train()",
        "buckets": "bucket_cap_mb=3 contradicts the plan",
        "compiled to evaluate": "was prepared without its model",
    }
    for found in pair.run(refused, str(tmp_path)):
        assert found.keys() == expected.keys()
        for name, words in expected.items():
            assert words in found[name], f"{name}: {found[name]!r}"


def lagged(rank: int, world: int, case: Case, folder: str) -> tuple[int, list[float]]:
    """Steps of a training that is saved and resumed under a plan that lags, and its weights."""
    from autosync.frameworks.transformers import use_bundle

    for resumes in (None, f"{folder}/checkpoint-{SAVED_AT}"):
        with_fresh_accelerate(rank, world)
        trainer = make_trainer(folder)
        shipped = bundle_of(case, trainer.model, world)
        use_bundle(trainer, shipped, allow_inexact=True, on_drift=print)
        trainer.train(resume_from_checkpoint=resumes)
        autosync.detach(trainer.model)
    weights = [value.detach().flatten() for value in trainer.model.parameters()]
    return trainer.state.global_step, torch.cat(weights).tolist()


def test_plans_that_lag_are_trained_saved_and_resumed(pair: Ranks, tmp_path: Path) -> None:
    case = Case(method="ps", staleness=1)
    first, second = pair.run(lagged, case, str(tmp_path))
    assert first == second
    assert first[0] == STEPS


def found_unused(rank: int, world: int, folder: str) -> list[bool]:
    """Whether DDP in place of a bundle that does not fit looks for unused parameters, where the
    arguments say nothing and where they say no."""
    from autosync.frameworks.transformers import use_bundle

    other = bundle_of(SHARDED, make_model("mlp"), world)
    chosen = []
    for said in (None, False):
        with_fresh_accelerate(rank, world)
        trainer = make_trainer(folder, max_steps=1, ddp_find_unused_parameters=said)
        use_bundle(trainer, other)
        assert any("does not fit" in words for words in warned(trainer.train))
        chosen.append(trainer.model_wrapped.find_unused_parameters)
        autosync.detach(trainer.model)
    return chosen


def test_ddp_in_place_of_a_bundle_looks_for_unused_parameters_as_the_trainer_says(
    pair: Ranks, tmp_path: Path
) -> None:
    assert pair.run(found_unused, str(tmp_path)) == [[True, False]] * 2
