"""The process against its formulas, and its kernel's training."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from autosync.simulator.learned import gaussian_process
from autosync.simulator.learned.gaussian_process import (
    HIDDEN,
    NCCL,
    OWN_NOISE,
    UNSEEN_LEVEL,
    Kernel,
    Posterior,
    SourceTrials,
    covariance,
    domain_correlations,
    kept_rows,
    source_trials,
    standardisation,
    start_kernel,
)
from autosync.simulator.learned.kernel_training import Grams, learned_kernel, values_of, with_values
from tests.simulator.learned.worlds import labelled, other_domains, small_domain

MODELS = ("a", "b", "c")
"""The names of the sources' models."""


@pytest.fixture(scope="module")
def sources() -> list[SourceTrials]:
    return [source_trials(each.features, each.step_seconds) for each in other_domains()]


@pytest.fixture(scope="module")
def own() -> SourceTrials:
    each = labelled(small_domain(gbps=0.8, layers=5, width=112), 50, seed=7)
    return source_trials(each.features, each.step_seconds)


@pytest.fixture(scope="module")
def kernel(sources: list[SourceTrials]) -> Kernel:
    """Of other values than those at the start."""
    start = start_kernel(*standardisation(sources))
    return replace(start, linear=start.linear * 2.0, weights=start.weights / 2.0, power=1.3)


def taken(trials: SourceTrials, rows: NDArray[np.int64]) -> SourceTrials:
    return SourceTrials(
        trials.descriptor, trials.columns[rows], trials.residual[rows], trials.slowness[rows]
    )


def covariance_of_all(
    sources: list[SourceTrials], kernel: Kernel, last_noise: float = 1.0
) -> NDArray[np.float64]:
    """Of all their trials, noise included. last_noise: of the last domain's trials, a share."""
    rows = np.concatenate([kernel.standard(each.columns) for each in sources])
    domain = np.repeat(np.arange(len(sources)), [len(each) for each in sources])
    descriptors = np.array([each.descriptor for each in sources])
    shared = domain_correlations(kernel, descriptors, descriptors)
    noise = kernel.noise_variance(np.concatenate([each.slowness for each in sources]))
    noise *= np.where(domain == len(sources) - 1, last_noise**2, 1.0)
    found = covariance(kernel, rows, rows, shared[:, domain[:, None], domain[None, :]])
    result: NDArray[np.float64] = found + np.diag(noise)
    return result


def test_mean_and_covariance_are_those_of_the_textbook(
    kernel: Kernel, sources: list[SourceTrials], own: SourceTrials
) -> None:
    """Rasmussen and Williams 2006, equations 2.23 and 2.24, of all trials at once."""
    few, rest = taken(own, np.arange(12)), taken(own, np.arange(12, 50))
    every = [*sources, few]
    rows = np.concatenate([kernel.standard(each.columns) for each in every])
    domain = np.repeat(np.arange(len(every)), [len(each) for each in every])
    descriptors = np.array([each.descriptor for each in every])
    shared = domain_correlations(kernel, descriptors, descriptors)
    inverse = np.linalg.inv(covariance_of_all(every, kernel, OWN_NOISE))
    asked = kernel.standard(rest.columns)
    to = covariance(kernel, rows, asked, shared[:, domain, -1:])
    expected = to.T @ inverse @ np.concatenate([each.residual for each in every])
    unit = np.ones((3, 1, 1))
    spread = covariance(kernel, asked, asked, unit) - to.T @ inverse @ to

    posterior = Posterior(kernel, sources, own.descriptor).given(few)
    mean, std = posterior.mean_and_std(rest.columns)
    np.testing.assert_allclose(mean, expected, atol=1e-8)
    np.testing.assert_allclose(std**2, np.diag(spread), atol=1e-8)


def test_trials_may_come_one_after_another(
    kernel: Kernel, sources: list[SourceTrials], own: SourceTrials
) -> None:
    prior = Posterior(kernel, sources, own.descriptor)
    once = prior.given(taken(own, np.arange(20)))
    twice = prior.given(taken(own, np.arange(7))).given(taken(own, np.arange(7, 20)))
    for one, other in zip(
        once.mean_and_std(own.columns), twice.mean_and_std(own.columns), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-9)
    before = prior.mean_and_std(own.columns)[1]
    assert (once.mean_and_std(own.columns)[1] < before + 1e-12).all()


def test_far_domains_say_less(kernel: Kernel, sources: list[SourceTrials]) -> None:
    here, axis = sources[0].descriptor, np.arange(len(sources[0].descriptor)) != NCCL
    shares = [
        domain_correlations(kernel, here[None], (here + shift * axis)[None])[:, 0, 0]
        for shift in (0.0, 1.0, 10.0)
    ]
    np.testing.assert_array_equal(shares[0], 1.0)
    assert (shares[0] > shares[1]).all()
    assert (shares[1] > shares[2]).all()


def test_another_backend_shares_no_level_and_is_less_certain(
    kernel: Kernel, sources: list[SourceTrials]
) -> None:
    slow = [replace(each, residual=each.residual + 0.3) for each in sources]
    other = sources[0].descriptor.copy()
    other[NCCL] = 1.0
    same, across = (Posterior(kernel, slow, each) for each in (sources[0].descriptor, other))
    assert same.level() > 0.01
    assert across.level() == 0.0
    assert across.kernel.level == max(kernel.level, UNSEEN_LEVEL)
    columns = sources[1].columns[:8]
    assert (across.mean_and_std(columns)[1] > same.mean_and_std(columns)[1]).all()


def test_of_many_domains_the_nearest_speak(
    kernel: Kernel, sources: list[SourceTrials], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gaussian_process, "MOST_TRIALS", 170)
    for number, each in enumerate(sources):
        others = [source for k, source in enumerate(sources) if k != number]
        distances = [np.linalg.norm(source.descriptor - each.descriptor) for source in others]
        near = [each, others[int(np.argmin(distances))]]
        near.sort(key=lambda source: [s is source for s in sources].index(True))
        found = Posterior(kernel, sources, each.descriptor).mean_and_std(each.columns)[0]
        expected = Posterior(kernel, near, each.descriptor).mean_and_std(each.columns)[0]
        np.testing.assert_allclose(found, expected)


def test_the_fastest_strategies_are_kept(sources: list[SourceTrials]) -> None:
    kept = taken(sources[0], kept_rows(sources[0].slowness, 30))
    assert len(kept) == 30
    fastest = np.sort(sources[0].slowness)[:20]
    assert set(fastest) <= set(kept.slowness)
    assert kept.slowness.max() == sources[0].slowness.max()
    assert kept_rows(kept.slowness, 30).tolist() == list(range(30))


def test_the_values_of_a_kernel_make_it_again(kernel: Kernel) -> None:
    again = with_values(kernel, values_of(kernel))
    np.testing.assert_allclose(again.linear, kernel.linear)
    assert again.reach == pytest.approx(kernel.reach)


def test_training_and_prediction_have_one_covariance(
    kernel: Kernel, sources: list[SourceTrials]
) -> None:
    """Also across backends, and where one domain was measured twice, as on two hosts."""
    descriptor = sources[0].descriptor.copy()
    descriptor[NCCL] = 1.0
    every = [*sources, replace(sources[0], descriptor=descriptor), sources[1]]
    found = Grams(every, (*MODELS, "a", "b"), kernel).covariance(values_of(kernel))
    np.testing.assert_allclose(found.numpy(), covariance_of_all(every, kernel), atol=1e-8)


def test_training_reads_a_hidden_state_as_prediction_does(sources: list[SourceTrials]) -> None:
    """The last group of columns, as it is."""
    rng = np.random.default_rng(0)
    count = sum(map(len, sources))
    hidden = np.tanh(rng.normal(size=(count, HIDDEN))).astype(np.float32)
    kernel = start_kernel(*standardisation(sources), hidden=True)
    parts = np.split(hidden, np.cumsum(list(map(len, sources)))[:-1])
    joined = [
        replace(each, columns=np.hstack((each.columns, part)))
        for each, part in zip(sources, parts, strict=True)
    ]
    grams = Grams(sources, MODELS, kernel)
    found = grams.covariance(values_of(kernel), torch.from_numpy(hidden).double())
    np.testing.assert_allclose(found.numpy(), covariance_of_all(joined, kernel), atol=1e-8)


def test_the_loss_is_that_of_each_model_given_the_others(
    kernel: Kernel, sources: list[SourceTrials]
) -> None:
    grams = Grams(sources, ("a", "b", "a"), kernel)
    every = grams.covariance(values_of(kernel)).numpy()
    residual, losses = grams.residual.numpy(), []
    first, second, third = np.split(
        np.arange(len(residual)), np.cumsum(list(map(len, sources))[:2])
    )
    for block in (np.concatenate((first, third)), second):
        rest = np.setdiff1d(np.arange(len(residual)), block)
        to = every[np.ix_(block, rest)] @ np.linalg.inv(every[np.ix_(rest, rest)])
        miss = residual[block] - to @ residual[rest]
        spread = every[np.ix_(block, block)] - to @ every[np.ix_(rest, block)]
        quadratic = miss @ np.linalg.solve(spread, miss)
        losses.append(0.5 * (quadratic + np.linalg.slogdet(spread)[1]) / len(miss))
    assert float(grams.left_out_loss(values_of(kernel))) == pytest.approx(np.mean(losses))


def test_a_learned_kernel_is_likelier_than_its_start_and_the_same_every_time(
    sources: list[SourceTrials],
) -> None:
    torch.manual_seed(torch.seed())
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    learned, again = (learned_kernel(sources, MODELS) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    np.testing.assert_array_equal(learned.weights, again.weights)
    start = start_kernel(*standardisation(sources))
    grams = Grams(sources, MODELS, start)
    loss, first = (float(grams.left_out_loss(values_of(each))) for each in (learned, start))
    assert loss < first


def test_two_models_do_not_judge_a_kernel(sources: list[SourceTrials]) -> None:
    learned = learned_kernel(sources, ("a", "b", "a"))
    start = start_kernel(*standardisation(sources))
    np.testing.assert_array_equal(learned.linear, start.linear)
    assert learned.noise == start.noise
