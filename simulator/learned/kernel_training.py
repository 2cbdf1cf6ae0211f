"""Learns a process's kernel: the most likely one for models that it does not see.

The loss is the negative log likelihood, a trial, of the residuals of each model's domains given
those of all other models, with a prior about `start_kernel`. All models' likelihoods follow
from one inverse of the covariance of all trials (Rasmussen and Williams 2006, section 5.4.2, with a
model left out in place of a trial).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autosync.cancellation import check_cancelled
from autosync.simulator.learned.features.node_features import NodeFeatures
from autosync.simulator.learned.gaussian_process import (
    LIMITS,
    Kernel,
    SourceTrials,
    domain_correlations,
    standardisation,
    start_kernel,
)

if TYPE_CHECKING:
    from autosync.simulator.learned.encoders import Encoder

F64 = NDArray[np.float64]

STEPS = 24
"""Of Adam. More change the likelihood of what is left out by less than 0.005 a trial."""
RATE, ENCODER_RATE = 0.12, 0.01
MOST_SOURCES = 16
"""Domains that a kernel is learned from, those with the most trials."""
FEWEST_MODELS = 3
"""With fewer, `start_kernel` stays: one or two would be judged almost by themselves."""
PRIOR_WEIGHT = 1.0
"""Of the squared logarithm of each value over its start: a likelihood of eleven domains moves it by
some percent. With a hundredth of it the kernel trusts domains that are unlike any of these too
much (benchmarks/evaluation)."""
LEARNED = ("linear", "weights", "level", "smooth", "reach")
"""Fields of a kernel that are learned and positive; `correlations` are shares. The noise stays as
it starts: labels are means of several passes, so their likelihood tells less than a trial has."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Of torch: a second one gains nothing on small matrices, waits long on a busy machine, and
    would make sums depend on how many cores there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def learned_kernel(
    sources: Sequence[SourceTrials],
    models: Sequence[str],
    encoder: "Encoder | None" = None,
    nodes: Sequence[NodeFeatures] = (),
) -> Kernel:
    """From at least one domain. models: the name of each one's graph. encoder: its network learns
    with the kernel, in place, from the nodes of each domain's trials; its hidden state is a group
    of columns behind those of the sources."""
    kernel = start_kernel(*standardisation(sources), hidden=encoder is not None)
    order = sorted(range(len(sources)), key=lambda k: -len(sources[k]))[:MOST_SOURCES]
    names = [models[k] for k in order]
    if len(set(names)) < FEWEST_MODELS:
        return kernel
    grams = Grams([sources[k] for k in order], names, kernel)
    start = values_of(kernel)
    values = {name: value.clone().requires_grad_() for name, value in start.items()}
    groups: list[dict[str, Any]] = [{"params": list(values.values()), "lr": RATE}]
    if encoder is not None:
        groups.append({"params": list(encoder.parameters()), "lr": ENCODER_RATE})
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2 * STEPS // 3], 0.3)
    for _ in range(STEPS):
        check_cancelled()
        states = [encoder(nodes[k]) for k in order] if encoder is not None else []
        hidden = torch.cat(states).double() if states else None
        prior = torch.stack([((values[name] - start[name]) ** 2).sum() for name in start]).sum()
        loss = grams.left_out_loss(values, hidden) + PRIOR_WEIGHT * prior
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    return with_values(kernel, {name: value.detach() for name, value in values.items()})


def values_of(kernel: Kernel) -> dict[str, Tensor]:
    """What is learned, without bounds: logarithms, and logits of the correlations."""
    found = {name: torch.log(torch.as_tensor(getattr(kernel, name)).double()) for name in LEARNED}
    return found | {"correlations": torch.logit(torch.from_numpy(kernel.correlations))}


def with_values(kernel: Kernel, values: dict[str, Tensor]) -> Kernel:
    """The inverse of `values_of`."""
    found: dict[str, Any] = {}
    for name in LEARNED:
        value = torch.exp(values[name]).clamp(*LIMITS[name])
        found[name] = value.numpy() if value.ndim else float(value)
    return replace(kernel, correlations=torch.sigmoid(values["correlations"]).numpy(), **found)


class Grams:
    """What the covariance of N trials of several domains is computed from, whatever the kernel.

    products f64[1, N, N]: mean products of the columns, without a hidden state. blocks: the trials
    of each model.
    """

    def __init__(
        self, sources: Sequence[SourceTrials], models: Sequence[str], kernel: Kernel
    ) -> None:
        every = np.concatenate([kernel.standard(source.columns) for source in sources])
        rows = torch.from_numpy(every)
        self.products = (rows @ rows.T / rows.shape[1])[None]
        sizes = [len(source) for source in sources]
        domain = np.repeat(np.arange(len(sources)), sizes)
        descriptors = np.array([source.descriptor for source in sources])
        # whatever the distance: 0 or a half across backends, else 1
        unit = replace(kernel, correlations=np.ones(3), reach=np.inf)
        across = domain_correlations(unit, descriptors, descriptors)
        self.across = torch.from_numpy(across[:, domain[:, None], domain[None, :]])
        far = np.linalg.norm(descriptors[:, None] - descriptors, axis=2)
        self.far = torch.from_numpy(far[domain[:, None], domain[None, :]])
        self.residual = torch.from_numpy(np.concatenate([each.residual for each in sources]))
        slowness = np.concatenate([each.slowness for each in sources])
        self.noise = torch.diag(torch.from_numpy(kernel.noise_variance(slowness)))
        model = np.repeat(np.array(models), sizes)
        self.blocks = [torch.from_numpy(np.flatnonzero(model == name)) for name in np.unique(model)]

    def covariance(self, values: dict[str, Tensor], hidden: Tensor | None = None) -> Tensor:
        """`gaussian_process.covariance` of all trials, and their noise. hidden `(N, HIDDEN)`: the
        last group of columns."""
        products = self.products
        if hidden is not None:
            products = torch.cat((products, (hidden @ hidden.T)[None] / hidden.shape[1]))
        own = torch.diagonal(products, dim1=1, dim2=2)
        apart = (own[:, :, None] + own[:, None, :] - 2.0 * products).clamp(min=0.0)
        linear = torch.tensordot(torch.exp(2.0 * values["linear"]), products, 1)
        squares = torch.tensordot(torch.exp(values["weights"]), apart, 1)
        distance = torch.sqrt(3.0 * squares + 1e-12)
        smooth = (1.0 + distance) * torch.exp(2.0 * values["smooth"] - distance)
        parts = (torch.exp(2.0 * values["level"]), linear, smooth)
        fall = torch.exp(-self.far * torch.exp(-values["reach"]))
        found = torch.zeros(())
        for part, shared, across in zip(
            parts, torch.sigmoid(values["correlations"]), self.across, strict=True
        ):
            between = shared * across * fall
            found = found + part * torch.where(self.far == 0.0, 1.0, between)
        return found + self.noise

    def left_out_loss(self, values: dict[str, Tensor], hidden: Tensor | None = None) -> Tensor:
        """A trial's mean negative log likelihood given the other models, each model counting alike;
        without its constant."""
        precision = torch.cholesky_inverse(torch.linalg.cholesky(self.covariance(values, hidden)))
        weighted = precision @ self.residual
        loss = torch.zeros(())
        for block in self.blocks:
            factor = torch.linalg.cholesky(precision[block][:, block])
            misses = torch.cholesky_solve(weighted[block][:, None], factor)[:, 0]
            half_determinant = torch.log(torch.diagonal(factor)).sum()
            quadratic = 0.5 * (weighted[block] * misses).sum()
            loss = loss + (quadratic - half_determinant) / len(misses)
        return loss / len(self.blocks)
