"""Why a module could not be recorded: where in the user's code, and what to change."""

import sysconfig
import traceback
from importlib.util import find_spec
from pathlib import Path

from autosync.errors import NotTraceable

LOSS_PATH = "loss"
"""Stands for the module path of what the loss function does."""

READS_VALUES = (
    "item() cannot be called on meta",
    "Cannot copy out of meta tensor",
    "can't convert meta device type tensor",
    "Boolean value of Tensor",
    "Cannot access data pointer",
    "meta tensor to a scalar",
    "DataDependentOutput",
    ".numpy() is not supported for tensor subclasses",
    ".tolist() is not supported for tensor subclasses",
)
SHAPE_FROM_VALUES = ("data-dependent", "data-independent", "dynamic shape", "DynamicOutputShape")
NO_META_KERNEL = (
    "fake impl or Meta kernel",
    "from the 'Meta' backend",
    "UnsupportedOperatorException",
)
OR_RUN = "or let the step run on the CPU (`autosync import --values`)."
OTHER_DEVICE = ("Expected all tensors to be on the same device", "Torch not compiled with CUDA")


def failed_call(
    name: str, direction: str, call: tuple[str, str], error: Exception, depth: int
) -> NotTraceable:
    """`call`: (module path, aten name) of the latest call; `direction`: forward or backward;
    `depth`: operations recorded before it."""
    path, kind = call
    where = f"module {path!r}" if path else "the module itself"
    where = "the loss function" if path == LOSS_PATH else where
    kind = "item" if kind == "_local_scalar_dense" else kind
    after = f"at operation {kind!r}" if kind else "before the first operation"
    cause = f"{type(error).__name__}: {error}"
    if any(sign in cause for sign in READS_VALUES):
        why = "reads a tensor's value, which a recording without data cannot know"
        remedy = (
            "Replace .item(), float(tensor), tolist(), numpy() and `if tensor:` by tensor "
            f"operations such as torch.where, or move them out of forward and the loss; {OR_RUN}"
        )
    elif any(sign in cause for sign in SHAPE_FROM_VALUES):
        why = "makes a tensor whose shape depends on data"
        remedy = (
            "Use operations of fixed shape: torch.where or a mask instead of nonzero, "
            f"masked_select, unique or boolean indexing; {OR_RUN}"
        )
    elif any(sign in cause for sign in NO_META_KERNEL):
        why = "has no implementation that computes shapes only (a meta kernel)"
        remedy = "Replace the operation, or give it one with torch.library.register_fake."
    elif any(sign in cause for sign in OTHER_DEVICE):
        why = f"mixes devices: {first_line(error)}"
        remedy = "Make new tensors on the device of the inputs (device=x.device)."
    else:
        why = f"fails: {first_line(error)}"
        remedy = (
            "Check that the example inputs (shapes, dtypes, order) are what the module takes, and "
            f"that one training step of it runs as usual (recorded before: {depth} operations)."
        )
    return NotTraceable(
        f"{name!r}, {direction} pass, {where}{at(error)}, {after}: it {why}.",
        thing=f"{path}.{kind}" if path else kind or name,
        value=type(error).__name__,
        remedy=remedy,
    )


def no_values(name: str) -> NotTraceable:
    return NotTraceable(
        f"{name!r} can be recorded with values only, but its weights or example inputs have none: "
        "they are on the meta device.",
        thing=name,
        value="meta",
        remedy="Build both on the CPU.",
    )


def no_parameters(name: str) -> NotTraceable:
    return NotTraceable(
        f"{name!r} has no trainable parameter: there is nothing to synchronize.",
        thing=name,
        value=0,
        remedy="Give the module that is trained, with requires_grad left on.",
    )


def no_scalar_loss(name: str, what: str) -> NotTraceable:
    return NotTraceable(
        f"{name!r}: the step returns {what}, not a scalar loss.",
        thing="loss",
        value=what,
        remedy="Give a loss function (outputs, *inputs) that returns one number (of several "
        "losses, how they add up), or let the module return it, as `loss` of its outputs or alone "
        "(Hugging Face's do when the inputs have labels).",
    )


def without_gradient(name: str, variables: list[str]) -> str:
    more = f" and {len(variables) - 3} more" if len(variables) > 3 else ""
    return (
        f"{name!r}: the loss does not reach {', '.join(map(repr, variables[:3]))}{more}, so that "
        "they get no gradient: freeze them with requires_grad_(False), unless other iterations use "
        "them (DDP then needs find_unused_parameters=True, a plan needs nothing)."
    )


def no_batch(name: str, batch_size: int, shapes: list[tuple[int, ...]]) -> NotTraceable:
    return NotTraceable(
        f"{name!r}: no example input has a dimension of the batch size {batch_size}; their shapes "
        f"are {shapes}.",
        thing="batch_size",
        value=batch_size,
        remedy="State the batch size that the example inputs have.",
    )


def other_dtype(name: str, variable: str, dtype: object, known: tuple[str, ...]) -> NotTraceable:
    return NotTraceable(
        f"{name!r}: variable {variable!r} has dtype {dtype}; gradients are synchronized in "
        f"{', '.join(known)}.",
        thing=f"variable {variable}",
        value=str(dtype),
        remedy="Keep the trained weights in one of these, or freeze it with requires_grad_(False).",
    )


CELLS = ("/ipykernel_", "ipython-input-")
"""In the names of a notebook's cells, which are no files: of Jupyter, of IPython and Colab."""

NOT_THE_USERS = ("torch", "transformers", "autosync")
"""Packages whose frames only lead to what the user wrote."""


def first_line(error: BaseException) -> str:
    """The error in one line, without a traceback."""
    text = str(error).strip().splitlines()
    line = text[0].strip().rstrip(".") if text else ""
    line = line if len(line) <= 200 else line[:197] + "..."
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def at(error: BaseException) -> str:
    """` (file:line in function)`, to stand in a sentence: of the innermost frame that is neither
    torch's, transformers', AutoSync's nor Python's own; of the innermost third-party frame where
    there is none such. Empty where only torch and AutoSync ran."""
    frames = list(reversed(traceback.extract_tb(error.__traceback__)))
    for skipped in (_folders_of(*NOT_THE_USERS), _folders_of("torch", "autosync")):
        for frame in frames:
            path = Path(frame.filename)
            known = path.is_file() or any(each in frame.filename for each in CELLS)
            if known and not _is_within(path.resolve(), skipped):
                return f" ({_shown(path.resolve())}:{frame.lineno} in {frame.name})"
    return ""


def _folders_of(*packages: str) -> list[Path]:
    folders = []
    for package in packages:
        spec = find_spec(package)
        if spec is not None:
            folders += [Path(folder).resolve() for folder in spec.submodule_search_locations or ()]
    return folders


def _is_within(path: Path, folders: list[Path]) -> bool:
    standard = Path(sysconfig.get_path("stdlib")).resolve()
    if path.is_relative_to(standard) and "site-packages" not in path.parts:
        return True
    return any(path.is_relative_to(folder) for folder in folders)


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
