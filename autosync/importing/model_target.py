"""`package.module:function` or `file.py:function`: the user's own model, named on the user's own
command line."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autosync.errors import InvalidInput, NotFound
from autosync.importing.refusals import at, first_line
from autosync.importing.several_examples import Examples, each_example
from autosync.importing.training_step import (
    Inputs,
    Loss,
    batch_size_of,
    check_inputs,
    parts_in_eval_mode,
)

FORM = "Give it as package.module:function, e.g. train:example, in the folder that holds it."
RETURNS = (
    "Return (module, example_inputs, loss): an nn.Module, a tuple of tensors or a dict of keyword "
    "arguments (several as Examples([first, second])), and a function (outputs, *inputs) -> "
    "loss, or None when the module returns it."
)


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """What the user's function returned, and the batch size of its inputs: the leading dimension
    that most of them have."""

    module: nn.Module
    example_inputs: Inputs | Examples
    loss: Loss | None
    batch_size: int


def load_target(target: str, *, allocate: bool = False) -> ModelTarget:
    """Import and call the function that `target` names. Only for the user's own command line: it
    runs the user's code. What is trained is put in train mode, as a training loop does.

    allocate: build real weights, for measuring. Otherwise the function is called on the meta
        device; one that cannot run there (it reads values or loads weights) is called as it is.

    Raises:
        NotFound: no such module or function.
        InvalidInput: a malformed target, a function that fails or returns something else.
    """
    with _this_folder():  # the function may import modules of it, too
        made = _call(_function(target), target, allocate)
    if not isinstance(made, tuple) or len(made) != 3:
        what = f"{len(made)} values" if isinstance(made, tuple) else f"a {type(made).__name__}"
        raise _wrong(target, what, "it must return three")
    module, example_inputs, loss = made
    if not isinstance(module, nn.Module):
        raise _wrong(target, type(module).__name__, "the first value must be an nn.Module")
    for part in parts_in_eval_mode(module):
        part.train()
    if loss is not None and not callable(loss):
        raise _wrong(target, type(loss).__name__, "the third value must be a function or None")
    examples = [check_inputs(each, target) for each in each_example(example_inputs)]
    sizes = {batch_size_of(each) for each in examples}
    batch_size = sizes.pop()
    if not batch_size:
        raise _wrong(target, "none", "an input must have the batch dimension")
    if sizes:
        found = f"{batch_size} and {sizes.pop()}"
        raise _wrong(target, found, "the example inputs must have one batch size")
    several = isinstance(example_inputs, Examples)
    inputs = Examples(tuple(examples)) if several else examples[0]
    return ModelTarget(module, inputs, loss, batch_size)


def _function(target: str) -> Callable[[], Any]:
    module_name, colon, function_name = target.partition(":")
    # a file of this folder, or of one below
    module_name = module_name.removeprefix("./").removesuffix(".py").replace("/", ".")
    is_here = bool(module_name) and not module_name.startswith(".")
    if not (is_here and colon and function_name.isidentifier()):
        raise InvalidInput(
            f"{target!r} names no function.", thing="model", value=target, remedy=FORM
        )
    module = _import(module_name, target)
    function = getattr(module, function_name, None)
    if function is None:
        known = [name for name in vars(module) if not name.startswith("_")]
        raise NotFound(
            f"{target!r}: module {module_name!r} has no {function_name!r}.",
            thing="model",
            value=function_name,
            remedy=f"It has: {', '.join(known[:12]) or 'nothing'}.",
        )
    if not callable(function):
        raise _wrong(target, type(function).__name__, f"{function_name!r} is no function")
    return function  # type: ignore[no-any-return]  # whatever the user wrote


@contextmanager
def _this_folder() -> Iterator[None]:
    """Inside, modules of this folder can be imported, as with `python -m`, and read no arguments: a
    script may parse those of its own command line."""
    here, arguments = str(Path.cwd()), sys.argv
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.insert(0, here)
    sys.argv = arguments[:1]
    try:
        yield
    finally:
        sys.argv = arguments
        if added:
            sys.path.remove(here)


def _import(module_name: str, target: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        absent = error.name or module_name
        if module_name == absent or module_name.startswith(f"{absent}."):
            raise NotFound(
                f"{target!r}: there is no module {absent!r} here or among the installed packages.",
                thing="model",
                value=module_name,
                remedy="Run in the folder that holds it, or set PYTHONPATH.",
            ) from None
        raise InvalidInput(
            f"{target!r}: importing {module_name!r} needs {absent!r}, which is not installed.",
            thing="model",
            value=absent,
            remedy=f"Install {absent!r} in this environment.",
        ) from None
    except (Exception, SystemExit) as error:  # the user's own code; a script may exit
        raise InvalidInput(
            f"{target!r}: importing {module_name!r} fails: {first_line(error)}.",
            thing="model",
            value=module_name,
            remedy="Make `python -c 'import ...'` of it work first.",
        ) from None


def _call(function: Callable[[], Any], target: str, allocate: bool) -> Any:
    if not allocate:
        try:
            with torch.device("meta"):
                return function()
        except (Exception, SystemExit):  # it may read weights: called again below
            pass
    try:
        with torch.device("cpu"):
            return function()
    except (Exception, SystemExit) as error:  # the user's own code may raise anything
        raise InvalidInput(
            f"{target!r} fails{at(error)}: {first_line(error)}.",
            thing="model",
            value=type(error).__name__,
            remedy=_remedy(error),
        ) from None


def _remedy(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename:
        return (
            f"It needs the file {error.filename!r}: run in the folder it is relative to, or let "
            "the function build the model without it (a graph needs no weights)."
        )
    return "It must run without arguments."


def _wrong(target: str, value: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"{target!r}: {why}, got {value}.",
        thing="model",
        value=value,
        remedy=RETURNS,
    )
