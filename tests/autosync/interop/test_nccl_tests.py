"""Logs of nccl-tests in the layouts of its versions become curves of collectives."""

import re
from dataclasses import replace

import pytest

from autosync.errors import InvalidInput
from autosync.interop.nccl_tests import Stated, Sweep, merged_curves, read_nccl_tests

DEVICES = "\n".join(
    f"#  Rank {rank:2} Group  0 Pid  {4000 + rank} on  host-{rank // 2} device  {rank % 2} [0x10] "
    "NVIDIA H100 80GB HBM3"
    for rank in range(4)
)
HEADING = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""  # noqa: E501
ROWS = """\
           8             2     float     sum      -1    53.99    0.00    0.00      0    22.36    0.00    0.00      0
        1024           256     float     sum      -1    30.10    0.03    0.05      0    29.80    0.03    0.05      0
     1048576        262144     float     sum      -1   105.00    9.99   14.98      0   103.30   10.15   15.23      0
  1073741824     268435456     float     sum      -1  10737.4  100.00  150.00      0  10800.0   99.42  149.13      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 41.2
"""  # noqa: E501
NEW = f"""\
# nccl-tests version 2.18.2 nccl-headers=23007 nccl-library=22105
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
{DEVICES}
host-0:4000:4010 [0] NCCL INFO Using network Socket
#
{HEADING}{ROWS}"""
ALL_GATHER = (
    NEW.replace("all_reduce", "all_gather")
    .replace("sum ", "none")
    .replace("14.98", " 7.49")
    .replace("150.00", " 75.00")
)
OLD_BROADCAST = """\
$ mpirun ./build/broadcast_perf -b 1M -e 1M
# Using devices
#   Rank  0 Pid  11776 on   a device  0 [0x07] Tesla V100-SXM2-32GB
#   Rank  1 Pid  11777 on   a device  1 [0x08] Tesla V100-SXM2-32GB
NCCL version 2.7.8+cuda11.0
#                                                 out-of-place                       in-place
#       size         count    type    root     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144   float       0   104.86   10.00   10.00  0e+00   104.86   10.00   10.00  0e+00
"""  # noqa: E501


def only(text: str, source: str = "log", stated: Stated | None = None) -> Sweep:
    (sweep,) = read_nccl_tests(text, source, stated)
    return sweep


def test_the_out_of_place_columns_of_todays_version_are_read() -> None:
    sweep = only(NEW)
    curve = sweep.curve
    assert (curve.operation, curve.ranks, curve.nodes) == ("all_reduce", 4, 2)
    assert curve.sizes_bytes == (8.0, 1024.0, 2.0**20, 2.0**30)
    # what is set up at the first message, 53.99 us in the log, is no part of its time
    assert curve.seconds == pytest.approx((30.1e-6, 30.1e-6, 105e-6, 10737.4e-6))
    assert (curve.algorithm, curve.protocol) == ("", "")
    assert sweep.nccl_version == "2.21.5"


def test_a_gather_is_known_by_its_program_and_its_bus_bandwidth() -> None:
    assert only(ALL_GATHER).curve.operation == "all_gather"
    with pytest.raises(InvalidInput, match=r"busbw is 0\.7.* times algbw, but 1\.500 times"):
        read_nccl_tests(ALL_GATHER.replace("all_gather_perf", "all_reduce_perf"), "log")


def test_columns_of_an_older_version_are_found_by_their_heading() -> None:
    sweep = only(OLD_BROADCAST)
    assert (sweep.curve.operation, sweep.curve.ranks, sweep.curve.nodes) == ("broadcast", 2, 1)
    assert sweep.curve.seconds == pytest.approx((104.86e-6,))
    assert sweep.nccl_version == "2.7.8"


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "0: ", "  "])
def test_what_launchers_write_before_a_line_does_not_count(prefix: str) -> None:
    tagged = "\n".join(prefix + line for line in NEW.splitlines())
    assert only(tagged) == only(NEW)


def test_columns_that_a_version_leaves_blank_or_adds_do_not_move_the_others() -> None:
    blank = NEW.replace(" sum ", "     ")
    assert only(blank) == only(NEW)
    stamped = NEW.replace("#wrong\n", "#wrong           timestamp\n")
    stamped = stamped.replace("      0\n", "      0 2026-01-31 10:00:00\n")
    assert only(stamped) == only(NEW)


def test_a_forced_algorithm_is_part_of_the_curve() -> None:
    forced = only("$ NCCL_ALGO=RING NCCL_PROTO=simple mpirun ...\n" + NEW).curve
    assert (forced.algorithm, forced.protocol) == ("Ring", "Simple")
    listed = only("host:1:2 [0] NCCL INFO NCCL_ALGO set by environment to Ring,Tree\n" + NEW).curve
    assert listed.algorithm == ""


def test_what_one_run_of_a_log_forces_the_next_does_not() -> None:
    done = "# Collective test concluded: all_reduce_perf\n"
    forced, free = "$ mpirun -x NCCL_ALGO=Ring all_reduce_perf\n", "$ mpirun all_reduce_perf\n"
    info = "host-0:1:2 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n"
    for ends in ("", done):
        log = forced + info + NEW + ends + free + NEW + ends
        assert [each.curve.algorithm for each in read_nccl_tests(log, "log")] == ["Ring", ""]
    exported = "$ export NCCL_ALGO=Ring\n" + free + NEW + free + NEW
    assert [each.curve.algorithm for each in read_nccl_tests(exported, "log")] == ["Ring", "Ring"]


def test_tables_of_programs_that_have_no_curve_are_passed_over() -> None:
    """Their bus bandwidth is that of an all-gather."""
    gather = ALL_GATHER.replace("all_gather_perf", "gather_perf")
    found = read_nccl_tests(ALL_GATHER + gather + NEW, "log")
    assert [sweep.curve.operation for sweep in found] == ["all_gather", "all_reduce"]
    with pytest.raises(InvalidInput, match="has no table"):
        read_nccl_tests(gather, "log")


def test_tables_of_one_log_are_read_one_by_one() -> None:
    found = read_nccl_tests(NEW + OLD_BROADCAST, "log")
    assert [sweep.curve.operation for sweep in found] == ["all_reduce", "broadcast"]
    assert [sweep.curve.ranks for sweep in found] == [4, 2]


def test_ranks_of_a_run_that_failed_are_not_those_of_the_next() -> None:
    failed = NEW[: NEW.index(HEADING)]
    curve = only(failed + OLD_BROADCAST).curve
    assert (curve.operation, curve.ranks, curve.nodes) == ("broadcast", 2, 1)


def test_of_repeated_sweeps_the_median_counts() -> None:
    once = only(NEW)
    slower = replace(once.curve, seconds=tuple(2 * each for each in once.curve.seconds))
    slowest = replace(once.curve, seconds=tuple(9 * each for each in once.curve.seconds))
    sweeps = [once, Sweep(slowest), Sweep(slower), *read_nccl_tests(OLD_BROADCAST, "log")]
    merged, broadcast = merged_curves(sweeps)
    assert merged == slower
    assert broadcast.operation == "broadcast"


def test_of_repeated_cycles_the_median_counts() -> None:
    """`-N 3` prints them under one heading."""
    (row,) = (line for line in ROWS.splitlines() if line.split()[0] == "1024")
    cycles = [row.replace("30.10", time) for time in ("40.00", "90.00")]
    curve = only("\n".join([NEW, *cycles])).curve
    assert curve.seconds[:2] == pytest.approx((40e-6, 40e-6))


def test_what_a_log_does_not_say_is_asked_for() -> None:
    bare = HEADING + ROWS
    with pytest.raises(InvalidInput, match=r"does not say which collective.*"):
        read_nccl_tests(bare, "log")
    with pytest.raises(InvalidInput, match="does not list its ranks") as caught:
        read_nccl_tests(bare, "allreduce-all_reduce_2n.txt")
    assert "--ranks" in caught.value.remedy
    stated = Stated("all_reduce", 4, 2)
    assert only(bare, "log", stated).curve == only(NEW).curve
    assert only(bare, "broadcast.log", stated).curve == only(NEW).curve, "a name says less"
    with pytest.raises(InvalidInput, match="does not say which collective"):
        read_nccl_tests(bare, "reduce/of-today.log")  # a folder of many logs
    assert only(NEW, "log", Stated("reduce", 64, 8)) == only(NEW), "what a log says comes first"
    alone = "\n".join(line for line in NEW.splitlines() if not re.match(r"#  Rank  [1-3]", line))
    with pytest.raises(InvalidInput, match="one rank has nothing to exchange"):
        read_nccl_tests(alone, "log")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("14.98      0", "14.98      7", "line 17: 7 values were wrong"),
        ("105.00", "305.00", "line 17: 1048576 bytes in 305 us are 3.44 GB/s, but algbw says 9.99"),
        ("105.00", "N/A", "line 17: is a row whose columns are not those of the heading"),
        ("105.00", "0.00", "line 17: the out-of-place time is 0"),
        ("150.00", "180.00", "busbw is"),
    ],
)
def test_a_row_that_contradicts_itself_is_named(old: str, new: str, words: str) -> None:
    text = NEW.replace(old, new)
    if "busbw" in words:
        text = text.replace("14.98", "18.00")
    assert text != NEW
    with pytest.raises(InvalidInput) as caught:
        read_nccl_tests(text, "log")
    assert words in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize("text", ["", "hello\n", HEADING, "x" * 10_000_000])
def test_a_log_without_a_table_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"has no table|is larger than 8 MB"):
        read_nccl_tests(text, "log")
