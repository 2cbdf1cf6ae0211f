import sys
from pathlib import Path

import pytest

from autosync.errors import AutosyncError, InvalidInput, NotFound
from autosync.importing import import_module, load_target

GOOD = """
import torch
from torch import nn

def example():
    loss = lambda outputs, x, y: nn.functional.cross_entropy(outputs, y)
    return nn.Linear(8, 3), (torch.randn(4, 8), torch.randint(0, 3, (4,))), loss

def reads_values():
    module, inputs, loss = example()
    float(inputs[0].sum())
    return module, inputs, loss

def fails():
    raise KeyError("weights.bin")

def leaves():
    raise SystemExit(3)

def needs_argument(size):
    return example()

def two():
    return example()[:2]

def one():
    return example()[0]

def no_module():
    return (3, *example()[1:])

def no_tensors():
    return example()[0], [1, 2], None

def no_loss():
    return (*example()[:2], 5)

def scalar():
    return example()[0], (torch.tensor(1.0),), None

class Keeps(nn.Sequential):
    def train(self, mode=True):
        super().train(mode)[0].eval()
        return self

def evaluating():
    loaded = Keeps(nn.Sequential(nn.Linear(8, 8)), nn.Linear(8, 3)).eval()
    teacher = nn.Sequential(nn.Linear(8, 8)).eval().requires_grad_(False)
    return nn.Sequential(teacher, nn.BatchNorm1d(8).eval(), loaded), *example()[1:]

number = 7
"""

PARSES = """
import argparse
from tried_models import example
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()
"""

LATE = """
def example():
    from tried_models import example
    return example()
"""


@pytest.fixture
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tried_models.py").write_text(GOOD)
    (tmp_path / "tried_syntax.py").write_text("def broken(:\n")
    (tmp_path / "tried_needs.py").write_text("import surely_not_installed_here\n")
    (tmp_path / "tried_late.py").write_text(LATE)
    (tmp_path / "tried_parses.py").write_text(PARSES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.mark.usefixtures("_project")
def test_a_function_is_called_without_allocating() -> None:
    path = list(sys.path)
    assert load_target("./tried_models.py:example").batch_size == 4
    target = load_target("tried_models:example")
    assert target.batch_size == 4
    assert {p.device.type for p in target.module.parameters()} == {"meta"}
    assert sys.path == path
    graph = import_module(
        target.module, target.example_inputs, target.loss, name="mine", batch_size=4
    )
    assert graph.parameters == 27


@pytest.mark.usefixtures("_project")
def test_a_function_may_import_modules_beside_its_own() -> None:
    path = list(sys.path)
    assert load_target("tried_late:example").batch_size == 4
    assert sys.path == path


@pytest.mark.usefixtures("_project")
def test_a_script_that_parses_its_own_arguments_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["autosync", "diagnose", "tried_parses:example"])
    assert load_target("tried_parses:example").batch_size == 4
    assert sys.argv[1:] == ["diagnose", "tried_parses:example"]


@pytest.mark.usefixtures("_project")
def test_a_function_that_needs_values_gets_them() -> None:
    allocated = load_target("tried_models:example", allocate=True)
    assert {p.device.type for p in allocated.module.parameters()} == {"cpu"}
    reading = load_target("tried_models:reads_values")
    assert {p.device.type for p in reading.module.parameters()} == {"cpu"}


@pytest.mark.usefixtures("_project")
def test_what_is_trained_is_in_train_mode() -> None:
    """`from_pretrained` returns models in eval mode. What is kept in it on purpose stays so."""
    made = load_target("tried_models:evaluating").module
    modes = [module.training for module in made.modules()]
    of_teacher, of_norm, of_loaded = [False, False], [False], [True, False, False, True]
    assert modes == [True, *of_teacher, *of_norm, *of_loaded]


@pytest.mark.usefixtures("_project")
@pytest.mark.parametrize(
    ("target", "kind", "words"),
    [
        ("tried_models", InvalidInput, "package.module:function"),
        (":example", InvalidInput, "package.module:function"),
        ("tried_models:", InvalidInput, "package.module:function"),
        ("tried_models:a.b", InvalidInput, "package.module:function"),
        ("../tried_models.py:example", InvalidInput, "in the folder that holds it"),
        ("/elsewhere/tried_models.py:example", InvalidInput, "in the folder that holds it"),
        ("no_such_module_here:example", NotFound, "PYTHONPATH"),
        ("tried_models.part:example", NotFound, "tried_models.part"),
        ("tried_models:leaves", InvalidInput, "fails"),
        ("tried_models:absent", NotFound, "It has: "),
        ("tried_models:number", InvalidInput, "is no function"),
        ("tried_syntax:broken", InvalidInput, "SyntaxError"),
        ("tried_needs:example", InvalidInput, "Install 'surely_not_installed_here'"),
        ("tried_models:fails", InvalidInput, "weights.bin"),
        ("tried_models:needs_argument", InvalidInput, "without arguments"),
        ("tried_models:two", InvalidInput, "got 2 values"),
        ("tried_models:one", InvalidInput, "got a Linear"),
        ("tried_models:no_module", InvalidInput, "must be an nn.Module, got int"),
        ("tried_models:no_tensors", InvalidInput, "tuple of tensors"),
        ("tried_models:no_loss", InvalidInput, "a function or None, got int"),
        ("tried_models:scalar", InvalidInput, "batch dimension"),
    ],
)
def test_each_mistake_is_named(target: str, kind: type[AutosyncError], words: str) -> None:
    with pytest.raises(kind) as caught:
        load_target(target)
    assert words in str(caught.value)
    assert target in str(caught.value)
    assert caught.value.remedy
    assert caught.value.__context__ is None or caught.value.__suppress_context__
