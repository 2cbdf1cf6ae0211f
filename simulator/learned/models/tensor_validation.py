"""Whether the tensors of a checkpoint are those that its model would have written."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from autosync.simulator.learned.models.ensemble_model import (MEMBERS, EnsembleModel)
from autosync.simulator.learned.features.strategy_features import (PARTS, summary_columns)
from autosync.simulator.learned.models.learned_model import (GaussianModel, LinearModel, LearnedModel)
from autosync.simulator.learned.models.network_model import (NetworkModel)
from autosync.simulator.learned.models.tensors import (members_of)

Arrays = Mapping[str, NDArray[Any]]
Form = tuple[tuple[int, ...], type[np.generic]]
"""Shape and type."""

MAY_BE_INFINITE = ("scale", "penalty")
"""Of columns that never varied, and of a ridge that stands alone."""


def wrong_in_tensors(model: LearnedModel, arrays: Arrays) -> str:
    """What speaks against restoring `arrays` into the untrained `model`; empty if nothing does."""
    forms = _calibration(arrays)
    if isinstance(model, EnsembleModel):
        forms["weights"] = ((len(MEMBERS),), np.float64)
    if isinstance(model, NetworkModel) and _present(arrays, "network."):
        # before anything of the stated size is built: hidden weights of both directions alone
        held = sum(array.nbytes for array in arrays.values())
        if model.kind == "lstm" and 32 * model.layers * model.width**2 > held:
            return f"{model.layers} layers of {model.width} do not fit into {held} bytes"
    for part in _forms(model, arrays, ""):
        if any(name in arrays for name in part):
            forms |= part
    if missing := forms.keys() - arrays.keys():
        return f"tensor {min(missing)!r} is missing"
    if odd := arrays.keys() - forms.keys():
        return f"tensor {min(odd)!r} belongs to no model of this kind"
    for name, (shape, kind) in forms.items():
        array = arrays[name]
        if (array.shape, array.dtype) != (shape, np.dtype(kind)):
            found = f"{array.dtype} of shape {array.shape}"
            return f"tensor {name!r} is {found}, not {np.dtype(kind)} of shape {shape}"
        if wrong := _wrong_values(name, array):
            return f"tensor {name!r} {wrong}"
    return ""


def _wrong_values(name: str, array: NDArray[Any]) -> str:
    last = name.rpartition(".")[2]
    if last in MAY_BE_INFINITE:
        return "" if (array > 0).all() else "holds values that are not positive"
    if not np.isfinite(array).all():
        return "holds values that are not finite"
    if name == "calibration.scores" and not (np.diff(array) > 0).all():
        return "does not rise"
    if name == "calibration.log_seconds" and not (np.diff(array) >= 0).all():
        return "falls"
    if last == "margin" and array[0] < 0:
        return "is negative"
    if last in ("setting", "variance") and not (array >= 0).all():
        return "is negative"
    if name == "weights" and not ((array >= 0).all() and array.sum() <= 1 + 1e-9):
        return "holds no shares of 1"
    return "is no share" if last == "share" and not 0 <= array[0] <= 1 else ""


def _present(arrays: Arrays, prefix: str) -> bool:
    return any(name.startswith(prefix) for name in arrays)


def _calibration(arrays: Arrays) -> dict[str, Form]:
    """Its curve has as many knots as it has."""
    scores = arrays.get("calibration.scores")
    knots = len(scores) if scores is not None and scores.ndim == 1 and len(scores) else 1
    curve: Form = ((knots,), np.float64)
    return {
        "calibration.scores": curve,
        "calibration.log_seconds": curve,
        "calibration.margin": ((1,), np.float64),
    }


def _forms(model: LearnedModel, arrays: Arrays, prefix: str) -> list[dict[str, Form]]:
    """By part of the model: each is there whole, or was never trained."""
    if isinstance(model, LinearModel):
        columns = len(summary_columns(model.parts))
        return [_ridge(columns, f"{prefix}{name}.") for name in ("ridge", "prior")]
    if isinstance(model, GaussianModel):
        return [_gaussian(arrays, f"{prefix}{name}.") for name in ("own", "prior")]
    if isinstance(model, NetworkModel):
        return [_network(model, prefix)] if _present(arrays, f"{prefix}network.") else []
    assert isinstance(model, EnsembleModel)
    members = members_of(model)
    return [form for name, each in members for form in _forms(each, arrays, f"{prefix}{name}.")]


def _ridge(columns: int, prefix: str) -> dict[str, Form]:
    vectors = {
        f"{prefix}{name}": ((columns,), np.float64) for name in ("center", "scale", "weights")
    }
    return {
        **vectors,
        f"{prefix}covariance": ((columns, columns), np.float64),
        f"{prefix}penalty": ((1,), np.float64),
    }


def _gaussian(arrays: Arrays, prefix: str) -> dict[str, Form]:
    """It holds as many trials as it has coefficients."""
    coefficients = arrays.get(f"{prefix}coefficients")
    trials = coefficients.size if coefficients is not None else 1
    columns = len(summary_columns(PARTS))
    shapes: dict[str, tuple[int, ...]] = {
        "center": (columns,),
        "scale": (columns,),
        "known": (trials, columns),
        "coefficients": (trials,),
        "precision": (trials, trials),
        "setting": (3,),
        "variance": (1,),
        "share": (1,),
    }
    return {f"{prefix}{name}": (shape, np.float64) for name, shape in shapes.items()}


def _network(model: NetworkModel, prefix: str) -> dict[str, Form]:
    forms: dict[str, Form] = {}
    for name, columns in zip(("portions", "summary"), model.columns, strict=True):
        for field in ("center", "scale"):
            forms[f"{prefix}{name}.{field}"] = ((len(columns),), np.float64)
    for name, tensor in model.build().state_dict().items():
        assert tensor.dtype == torch.float32
        forms[f"{prefix}network.{name}"] = (tuple(tensor.shape), np.float32)
    return forms
