"""The Gaussian process on numbers made up by formula."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.simulator.learned.features.domain_descriptor import DESCRIPTOR
from autosync.simulator.learned.models.gaussian_process import (
    FittedKernel,
    GaussianProcess,
    KernelSettings,
    fit_kernel,
    fit_pooled_kernel,
    solved,
)
from autosync.simulator.learned.models.source_trials import KnownTrials, SourceTrials

F64 = NDArray[np.float64]


def world(count: int, seed: int = 0, noise: float = 0.01) -> tuple[F64, F64, F64]:
    """Columns of which two matter, one of them not linearly; residuals; base seconds."""
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((count, 4))
    target = 0.2 * np.sin(1.5 * table[:, 0]) + 0.1 * table[:, 1]
    return table, target + noise * rng.standard_normal(count), 1.0 + rng.random(count)


def known(*worlds: tuple[F64, F64, F64]) -> SourceTrials:
    """The trials of several domains that are alike."""
    counts = [len(target) for _, target, _ in worlds]
    return SourceTrials(
        np.zeros((len(worlds), len(DESCRIPTOR))),
        np.repeat(np.arange(len(worlds)), counts),
        np.concatenate([table for table, _, _ in worlds]).astype(np.float32),
        np.concatenate([target - np.median(target) for _, target, _ in worlds]),
        np.concatenate([base.min() / base for _, _, base in worlds]),
    )


def fitted(trials: SourceTrials) -> GaussianProcess:
    kernel = fit_kernel(trials)
    assert kernel is not None
    return solved(kernel, trials.as_own())


def test_a_left_out_correction_is_that_of_a_fit_without_the_trial() -> None:
    table, target, base = world(40)
    gaussian = fitted(known((table, target, base)))
    x, setting = gaussian.known, gaussian.kernel.setting
    squares = ((x[:, None, :] - x[None, :, :]) ** 2).mean(axis=2)
    kernel = np.exp(-0.5 * squares / setting.length**2) + setting.linear * x @ x.T / 4
    noisy = kernel + np.diag(setting.noise * base / base.min())
    residual = target - np.median(target)
    left_out = gaussian.left_out(residual)
    for trial in (0, 17, 39):
        others = np.arange(40) != trial
        expected = kernel[trial, others] @ np.linalg.solve(
            noisy[np.ix_(others, others)], residual[others]
        )
        assert left_out[trial] == pytest.approx(expected, rel=1e-6)


def test_what_is_unlike_all_trials_is_left_to_the_timeline_and_doubted() -> None:
    table, target, base = world(60)
    gaussian = fitted(known((table, target, base)))
    unseen, true, _ = world(200, seed=1, noise=0.0)
    errors = gaussian.correction(unseen) - (true - np.median(target))
    assert np.abs(errors).mean() < 0.35 * np.abs(true).mean()
    _, doubt = gaussian.correction_with_std(unseen)
    assert np.mean(np.abs(errors) <= 2.0 * doubt) > 0.85
    _, far_doubt = gaussian.correction_with_std(unseen + 20.0)
    assert far_doubt.min() > 2.0 * np.median(doubt)


@pytest.mark.parametrize("seed", range(3))
def test_residuals_that_are_noise_teach_nothing(seed: int) -> None:
    table, _, base = world(90, seed)
    noise = 0.1 * np.random.default_rng(seed).standard_normal(90)
    assert fit_kernel(known((table, noise, base))) is None


def test_domains_share_what_they_have_in_common_and_keep_their_levels() -> None:
    levels = (0.0, 0.7, -0.4)
    worlds = [world(50, seed) for seed in range(3)]
    trials = known(*((x, y + level, b) for (x, y, b), level in zip(worlds, levels, strict=True)))
    kernel = fit_pooled_kernel(trials, np.ones(3))
    assert kernel is not None
    pooled = solved(kernel, trials.related(np.zeros(len(DESCRIPTOR))))
    unseen, true, _ = world(100, seed=9, noise=0.0)
    assert np.corrcoef(pooled.correction(unseen), true)[0, 1] > 0.9


def test_domains_that_contradict_each_other_teach_nothing() -> None:
    table, target, base = world(50)
    trials = known((table, target, base), (table, -target, base))
    assert fit_pooled_kernel(trials, np.ones(2)) is None


def test_many_trials_of_another_domain_do_not_outvote_a_few_of_the_domain_itself() -> None:
    """One correction everywhere, another one here: what the two domains do not share is no noise
    that averages away."""
    kernel = FittedKernel(np.zeros(4), np.ones(4), KernelSettings(2.0, 0.0, 0.1), 1.0)
    table = world(200)[0]
    elsewhere = known((table, np.zeros(200), np.ones(200)))
    elsewhere = replace(elsewhere, residual=np.full(200, 0.2))
    here = replace(known((table[:6], np.zeros(6), np.ones(6))), residual=np.full(6, -0.2))
    descriptor = np.ones(len(DESCRIPTOR))
    alone = solved(kernel, KnownTrials(elsewhere).related(descriptor))
    unseen = world(50, seed=1)[0]
    correction, doubt = alone.correction_with_std(unseen)
    assert 0.05 < np.median(correction) < 0.2
    assert doubt.min() > 0.3  # however many trials there are
    both = solved(kernel, KnownTrials(elsewhere, here).related(descriptor))
    near, sure = both.correction_with_std(table[:6])
    assert near.max() < -0.1
    assert sure.max() < doubt.min()


def test_domains_unlike_the_one_at_hand_count_less() -> None:
    kernel = FittedKernel(np.zeros(4), np.ones(4), KernelSettings(2.0, 0.0, 0.1), 1.0)
    table = world(40)[0]
    trials = known((table, np.zeros(40), np.ones(40)), (table, np.zeros(40), np.ones(40)))
    far = np.zeros((2, len(DESCRIPTOR)))
    far[1] = 3.0
    residual = np.repeat([0.2, -0.2], 40)
    trials = replace(trials, descriptors=far, residual=residual)
    for place, sign in ((0.1, 1.0), (2.9, -1.0)):
        process = solved(kernel, trials.related(np.full(len(DESCRIPTOR), place)))
        assert sign * np.median(process.correction(table)) > 0.03


@pytest.mark.parametrize("count", [5, 64, 65, 150])
def test_it_is_solved_as_by_the_inverse_of_kernel_and_noise(count: int) -> None:
    """Also where the blocks of the triangle are not full."""
    table, residual, base = world(count)
    table = table.astype(np.float32).astype(np.float64)  # as trials are kept
    setting = KernelSettings(1.0, 0.1, 0.1)
    kernel = FittedKernel(table.mean(axis=0), table.std(axis=0), setting, float(residual.var()))
    weights = base.min() / base
    process = solved(kernel, replace(known((table, residual, base)), residual=residual).as_own())
    standard = kernel.standard(table)
    precision = np.linalg.inv(kernel.between(standard, standard) + np.diag(setting.noise / weights))
    unseen = world(40, seed=1)[0]
    likeness = kernel.between(kernel.standard(unseen), standard)
    own = 1.0 + setting.linear * (kernel.standard(unseen) ** 2).mean(axis=1)
    left = own - np.einsum("ij,ij->i", likeness @ precision, likeness)
    correction, std = process.correction_with_std(unseen)
    np.testing.assert_allclose(correction, likeness @ precision @ residual, atol=1e-9)
    np.testing.assert_allclose(std, np.sqrt(kernel.variance * left), rtol=1e-8)
    misses = precision @ residual / np.diag(precision)
    np.testing.assert_allclose(process.left_out(residual), residual - misses, atol=1e-9)
