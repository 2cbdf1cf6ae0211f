"""Which of a domain's strategies correct its costs before the others are judged."""

from benchmarks.timeline_residuals import SAMPLES, first_trials
from tests.benchmarks.test_evaluation import with_picks


def test_designs_and_samples_correct_the_costs_and_picks_do_not() -> None:
    measured = with_picks(0.5, 0)
    origins = [measured.origins[i] for i in first_trials(measured, 0)]
    assert sorted(origins) == ["ddp", "ps_one_server", *["sampled"] * SAMPLES]
