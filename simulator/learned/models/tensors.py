"""What a model has learned, as arrays by name; and back."""

from collections.abc import Iterator
from dataclasses import astuple

import numpy as np
import torch
from numpy.typing import NDArray

from autosync.simulator.learned.models.network_inputs import (Scaling)
from autosync.simulator.learned.models.ensemble_model import (MEMBERS, EnsembleModel)
from autosync.simulator.learned.models.gaussian_process import (GaussianProcess, KernelSettings)
from autosync.simulator.learned.models.learned_model import (GaussianModel, LinearModel, LearnedModel)
from autosync.simulator.learned.models.network_model import (NetworkModel)
from autosync.simulator.learned.models.ridge import (Ridge)

Arrays = dict[str, NDArray[np.generic]]


def tensors_of(model: LearnedModel, prefix: str = "") -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Every tensor of a model by name; what was never trained is left out."""
    if isinstance(model, LinearModel):
        for name, ridge in (("ridge", model.ridge), ("prior", model.prior)):
            if ridge is not None:
                for field in ("center", "scale", "weights", "covariance"):
                    yield f"{prefix}{name}.{field}", getattr(ridge, field)
                yield f"{prefix}{name}.penalty", np.array([ridge.penalty])
    elif isinstance(model, GaussianModel):
        for name, gaussian in (("own", model.own), ("prior", model.prior)):
            if gaussian is not None:
                for field in ("center", "scale", "known", "coefficients", "precision"):
                    yield f"{prefix}{name}.{field}", getattr(gaussian, field)
                yield f"{prefix}{name}.setting", np.array(astuple(gaussian.setting))
                yield f"{prefix}{name}.variance", np.array([gaussian.variance])
                yield f"{prefix}{name}.share", np.array([model.share])
    elif isinstance(model, NetworkModel) and model.network is not None:
        assert model.scaling is not None
        for name, scaling in zip(("portions", "summary"), model.scaling, strict=True):
            yield f"{prefix}{name}.center", scaling.center
            yield f"{prefix}{name}.scale", scaling.scale
        for name, tensor in model.network.state_dict().items():
            yield f"{prefix}network.{name}", tensor.numpy()
    elif isinstance(model, EnsembleModel):
        yield f"{prefix}weights", model.weights
        for name, each in members_of(model):
            yield from tensors_of(each, f"{prefix}{name}.")


def put_tensors(model: LearnedModel, arrays: Arrays, prefix: str = "") -> None:
    """The inverse of `tensors_of`: a restored model goes on learning from where it stands."""
    if isinstance(model, LinearModel):
        model.ridge = _ridge(arrays, f"{prefix}ridge.")
        model.prior = _ridge(arrays, f"{prefix}prior.") or model.ridge
    elif isinstance(model, GaussianModel):
        model.own = _gaussian(arrays, f"{prefix}own.")
        model.prior = _gaussian(arrays, f"{prefix}prior.")
        if model.prior is None:
            model.own, model.prior = None, model.own
        else:
            model.share = float(arrays[f"{prefix}prior.share"][0])
    elif isinstance(model, NetworkModel):
        names = [name for name in arrays if name.startswith(f"{prefix}network.")]
        if not names:
            return
        scaling = [
            Scaling(arrays[f"{prefix}{part}.center"], arrays[f"{prefix}{part}.scale"])  # type: ignore[arg-type]
            for part in ("portions", "summary")
        ]
        state = {
            name.removeprefix(f"{prefix}network."): torch.from_numpy(arrays[name]) for name in names
        }
        model.scaling = scaling[0], scaling[1]
        model.network = model.build()
        model.network.load_state_dict(state)
        model.network.eval()
        model.prior = state
    elif isinstance(model, EnsembleModel):
        model.start = model.weights = np.asarray(arrays[f"{prefix}weights"], dtype=np.float64)
        for name, each in members_of(model):
            put_tensors(each, arrays, f"{prefix}{name}.")


def members_of(model: EnsembleModel) -> Iterator[tuple[str, LearnedModel]]:
    """The models of an ensemble by the names that their tensors bear: "linear0", ..., "gat2"."""
    for name, models in zip(MEMBERS, model.parts, strict=True):
        for number, each in enumerate(models):
            yield f"{name}{number}", each


def _gaussian(arrays: Arrays, prefix: str) -> GaussianProcess | None:
    if f"{prefix}coefficients" not in arrays:
        return None
    fields = ("center", "scale", "known", "coefficients", "precision")
    center, scale, known, coefficients, precision = (
        np.asarray(arrays[f"{prefix}{field}"], dtype=np.float64) for field in fields
    )
    setting = KernelSettings(*(float(value) for value in arrays[f"{prefix}setting"]))
    variance = float(arrays[f"{prefix}variance"][0])
    return GaussianProcess(center, scale, known, coefficients, precision, setting, variance)


def _ridge(arrays: Arrays, prefix: str) -> Ridge | None:
    if f"{prefix}weights" not in arrays:
        return None
    fields = [arrays[f"{prefix}{field}"] for field in ("center", "scale", "weights")]
    penalty = float(arrays[f"{prefix}penalty"][0])
    return Ridge(*fields, penalty, arrays[f"{prefix}covariance"])  # type: ignore[arg-type, call-arg]
