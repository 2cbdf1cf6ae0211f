"""The published sweeps of nccl-tests stay predicted as well as the constants can."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.simulator.backends.nccl.collectives import classes_of
from autosync.simulator.backends.nccl.constants import PRIORS, constants, fitted_constants
from benchmarks.published.collective_fit import (
    CollectiveFit,
    complete_sweeps,
    fitted,
    interval_scale,
    launch_floor_seconds,
    left_out,
    predict,
)
from benchmarks.published.collective_rows import read_statements, read_sweeps
from benchmarks.published.collectives import (
    algorithms_stated,
    plot,
    print_sweeps,
    socket_errors,
    summary,
)


def test_every_sweep_is_read_and_what_cannot_be_predicted_says_why() -> None:
    sweeps = read_sweeps()
    assert len(sweeps) == 37
    skipped = [sweep for sweep in sweeps if not sweep.complete]
    assert 0 < len(skipped) < 5
    assert all(sweep.why for sweep in skipped)
    for sweep in sweeps:
        assert (np.diff(sweep.size_bytes) > 0).all()
        assert (sweep.seconds > 0).all()


def test_statements_are_bandwidths_of_one_node() -> None:
    statements = read_statements()
    assert len(statements) == 14
    for each in statements:
        assert each.topology.nodes == 1
        assert each.bus_factor * each.size_bytes / each.seconds > 300e9


def test_sweeps_are_predicted_in_sample() -> None:
    found = tuple(predict(sweep, constants()) for sweep in complete_sweeps())
    of_size = summary(found, fitted_constants().interval_scale)
    assert of_size["1 MiB and more"][0] < 0.09
    assert of_size["latency below 64 KiB"][0] < 0.1
    assert of_size["largest size"][0] < 0.06
    assert of_size["rows within their intervals"][0] > 0.9


def test_every_algorithm_that_a_source_states_is_predicted() -> None:
    stated = algorithms_stated()
    assert len(stated) == 10
    assert [name for _, name, _ in stated] == [predicted for _, _, predicted in stated]


def test_what_sweeps_do_not_tell_follows_the_others() -> None:
    sweeps = tuple(sweep for sweep in complete_sweeps() if sweep.family == "Dell XE9680 HGX H100")
    assert {name for sweep in sweeps for name in classes_of(sweep.topology)} == {
        "hopper", "nvlink4", "infiniband",
    }  # fmt: skip
    found = fitted(sweeps)
    assert found["nvlink4", "share"].measured == len(sweeps)
    assert found["tcp", "share"].measured == 0
    assert found["tcp", "share"].width > found["infiniband", "share"].width
    shifts = {
        name: found[name, "fill_ll"].value / PRIORS[name, "fill_ll"].value
        for name in ("roce", "efa", "tcp")
    }
    assert len(set(shifts.values())) == 1


def test_a_fit_comes_closer_than_its_priors() -> None:
    sweeps = complete_sweeps()[:4]
    fit = CollectiveFit(sweeps)
    before = [
        np.abs(np.log(predict(each, PRIORS).seconds / each.seconds)).mean() for each in sweeps
    ]
    table = fit.found()
    after = [np.abs(np.log(predict(each, table).seconds / each.seconds)).mean() for each in sweeps]
    assert np.mean(after) < np.mean(before)


def test_a_left_out_sweep_does_not_tell_its_own_floor() -> None:
    sweeps = {sweep.name: sweep for sweep in complete_sweeps()}
    sweep, large = sweeps["superbench_a100_ar"], sweeps["h100pcie_2"]
    assert sweep.one_process
    assert large.one_process
    slower = replace(sweep, seconds=2.0 * sweep.seconds)
    assert (predict(slower, PRIORS, 40e-6).seconds == predict(sweep, PRIORS, 40e-6).seconds).all()
    assert (predict(slower, PRIORS).seconds > predict(sweep, PRIORS).seconds).any()
    assert 30e-6 < launch_floor_seconds(sweeps.values()) < 50e-6
    assert launch_floor_seconds((large,)) == 0.0  # its least time is that of 1 GiB


def test_the_scale_of_intervals_holds_nine_of_ten_rows() -> None:
    found = tuple(predict(sweep, PRIORS) for sweep in complete_sweeps())
    share = summary(found, interval_scale(found))["rows within their intervals"][0]
    assert share == pytest.approx(0.9, abs=0.01)


def test_sweeps_are_printed_with_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = next(each for each in complete_sweeps() if each.name == "hgxh100_2n")
    print_sweeps((predict(sweep, constants()),), rows=True)
    printed = capsys.readouterr().out
    assert "| hgxh100_2n | all_reduce | 2 x 8 h100 |" in printed
    assert printed.count(" B ") == len(sweep.size_bytes)


@pytest.mark.long
def test_systems_that_the_fit_has_not_seen_are_predicted(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    found = left_out()
    of_size = summary(found, interval_scale(found))
    assert of_size["1 MiB and more"][0] < 0.15
    assert of_size["latency below 64 KiB"][0] < 0.3
    assert of_size["largest size"][0] < 0.06
    path = tmp_path_factory.mktemp("plot") / "plot.svg"
    plot(found, path)
    assert path.read_text().startswith("<?xml")


def test_rows_over_sockets_are_judged_by_constants_that_saw_none_of_them() -> None:
    found = {
        sweep.name: (sweep, measured, predicted) for sweep, measured, predicted in socket_errors()
    }
    fitted_to = {sweep.name for sweep in complete_sweeps()}
    assert not fitted_to & found.keys()
    judged = [sweep for sweep, _, _ in found.values() if not sweep.why]
    assert {sweep.topology.nic_gbytes_per_second * 8 for sweep in judged} == {32.0, 100.0}
    assert all(sweep.topology.gpus_per_node == 8 for sweep in judged)
    assert all(sweep.topology.gpus_per_node == 1 for sweep, _, _ in found.values() if sweep.why)
    for _, measured, predicted in found.values():
        assert (predicted / measured < 2.5).all()
