"""Adam (Kingma and Ba, 2015) as torch.optim has it, which loads torch's compiler on its first use:
a second and 50 MB that ranking proposals does not have to spare."""

from collections.abc import Iterable
from math import sqrt

import torch
from torch import nn

BETAS = (0.9, 0.999)
"""How much of the means of gradients and of their squares stays at a step."""
EPSILON = 1e-8


class Adam:
    """rate: of the next steps. weight_decay: share of a weight added to its gradient."""

    def __init__(self, weights: Iterable[nn.Parameter], rate: float, weight_decay: float) -> None:
        self.weights = list(weights)
        self.rate, self.weight_decay = rate, weight_decay
        self.means = [torch.zeros_like(weight) for weight in self.weights]
        self.squares = [torch.zeros_like(weight) for weight in self.weights]
        self.steps = 0

    @torch.no_grad()
    def step(self) -> None:
        """Move every weight against its gradient, and forget the gradient."""
        self.steps += 1
        known, squares_known = (1.0 - beta**self.steps for beta in BETAS)
        for weight, mean, square in zip(self.weights, self.means, self.squares, strict=True):
            assert weight.grad is not None
            slope = weight.grad.add(weight, alpha=self.weight_decay)
            mean.lerp_(slope, 1.0 - BETAS[0])
            square.mul_(BETAS[1]).addcmul_(slope, slope, value=1.0 - BETAS[1])
            deviation = (square.sqrt() / sqrt(squares_known)).add_(EPSILON)
            weight.addcdiv_(mean, deviation, value=-self.rate / known)
            weight.grad = None
