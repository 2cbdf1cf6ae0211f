"""Learns a process's kernel: the most likely one for models that it does not see.

The loss is the negative log likelihood, a trial, of the residuals of each model's domains given
those of all other models, with a weak prior about `start_kernel`. All models' likelihoods follow
from one inverse of the covariance of all trials (Rasmussen and Williams 2006, section 5.4.2, with a
model left out in place of a trial).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autosync.cancellation import check_cancelled
from autosync.simulator.learned.gaussian_process import (
    LIMITS,
    Kernel,
    SourceTrials,
    column_groups,
    domain_correlations,
    standardisation,
    start_kernel,
)
from autosync.simulator.learned.one_thread import one_thread

F64 = NDArray[np.float64]

STEPS = 24
"""Of Adam. More change the likelihood of what is left out by less than 0.005 a trial."""
RATE = 0.12
MOST_SOURCES = 16
"""Domains that a kernel is learned from, those with the most trials."""
FEWEST_MODELS = 3
"""With fewer, `start_kernel` stays: one or two would be judged almost by themselves."""
PRIOR_WEIGHT = 0.001
"""Of the squared logarithm of each value over its start."""
LEARNED = ("linear", "weights", "level", "smooth", "reach", "noise", "power")
"""Fields of a kernel that are positive; `correlations` are shares."""


@one_thread()
def learned_kernel(sources: Sequence[SourceTrials], models: Sequence[str]) -> Kernel:
    """From at least one domain. models: the name of each one's graph."""
    kernel = start_kernel(*standardisation(sources))
    order = sorted(range(len(sources)), key=lambda k: -len(sources[k]))[:MOST_SOURCES]
    used, names = [sources[k] for k in order], [models[k] for k in order]
    if len(set(names)) < FEWEST_MODELS:
        return kernel
    grams = Grams(used, names, kernel)
    start = values_of(kernel)
    values = {name: value.clone().requires_grad_() for name, value in start.items()}
    optimizer = torch.optim.Adam(values.values(), lr=RATE)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2 * STEPS // 3], 0.3)
    least, best = np.inf, start
    for _ in range(STEPS):
        check_cancelled()
        prior = sum((((values[name] - start[name]) ** 2).sum() for name in start), torch.zeros(()))
        loss = grams.left_out_loss(values) + PRIOR_WEIGHT * prior
        if float(loss.detach()) < least:
            least = float(loss.detach())
            best = {name: value.detach().clone() for name, value in values.items()}
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    return with_values(kernel, best)


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

    products, squares f64[G, N, N]: mean products and mean squared differences by group. blocks:
    the trials of each model.
    """

    def __init__(
        self, sources: Sequence[SourceTrials], models: Sequence[str], kernel: Kernel
    ) -> None:
        rows = np.concatenate([kernel.standard(source.columns) for source in sources])
        group = column_groups(rows.shape[1])
        chosen = [torch.from_numpy(rows[:, group == number]) for number in range(group.max() + 1)]
        self.products = torch.stack([part @ part.T / part.shape[1] for part in chosen])
        own = torch.diagonal(self.products, dim1=1, dim2=2)
        self.squares = (own[:, :, None] + own[:, None, :] - 2.0 * self.products).clamp(min=0.0)
        sizes = [len(source) for source in sources]
        domain = np.repeat(np.arange(len(sources)), sizes)
        descriptors = np.array([source.descriptor for source in sources])
        # of unit correlations and reach: exp(-distance), and 0 or a half across backends
        plain = replace(kernel, correlations=np.ones(3), reach=1.0)
        fall = domain_correlations(plain, descriptors, descriptors)
        self.fall = torch.from_numpy(fall[:, domain[:, None], domain[None, :]])
        self.same = torch.from_numpy(domain[:, None] == domain[None, :])
        self.residual = torch.from_numpy(np.concatenate([each.residual for each in sources]))
        self.slowness = torch.from_numpy(np.concatenate([each.slowness for each in sources]))
        model = np.repeat(np.array(models), sizes)
        self.blocks = [torch.from_numpy(np.flatnonzero(model == name)) for name in np.unique(model)]

    def covariance(self, values: dict[str, Tensor]) -> Tensor:
        """`gaussian_process.covariance` of all trials, and their noise."""
        linear = torch.tensordot(torch.exp(2.0 * values["linear"]), self.products, 1)
        squares = torch.tensordot(torch.exp(values["weights"]), self.squares, 1)
        distance = torch.sqrt(3.0 * squares + 1e-12)
        smooth = (1.0 + distance) * torch.exp(2.0 * values["smooth"] - distance)
        parts = (torch.exp(2.0 * values["level"]), linear, smooth)
        found = torch.zeros(())
        for part, shared, fall in zip(
            parts, torch.sigmoid(values["correlations"]), self.fall, strict=True
        ):
            between = shared * fall ** torch.exp(-values["reach"])
            found = found + part * torch.where(self.same, 1.0, between)
        noise = torch.exp(2.0 * values["noise"]) * self.slowness ** torch.exp(values["power"])
        return found + torch.diag(noise)

    def left_out_loss(self, values: dict[str, Tensor]) -> Tensor:
        """A trial's mean negative log likelihood given the other models, each model counting alike;
        without its constant."""
        precision = torch.cholesky_inverse(torch.linalg.cholesky(self.covariance(values)))
        weighted = precision @ self.residual
        loss = torch.zeros(())
        for block in self.blocks:
            factor = torch.linalg.cholesky(precision[block][:, block])
            misses = torch.cholesky_solve(weighted[block][:, None], factor)[:, 0]
            half_determinant = torch.log(torch.diagonal(factor)).sum()
            quadratic = 0.5 * (weighted[block] * misses).sum()
            loss = loss + (quadratic - half_determinant) / len(misses)
        return loss / len(self.blocks)
