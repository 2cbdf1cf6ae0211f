"""The most that is held, from allocations whose ends are not all seen."""

from benchmarks.peak_memory import Allocation, most_held


def test_blocks_end_where_they_are_freed() -> None:
    events = [
        Allocation(1, 0, 100),
        Allocation(2, 200, 50),
        Allocation(3, 0, -100),
        Allocation(4, 300, 60),
    ]
    assert most_held(events, 0, 9) == 150
    assert most_held(events, 3, 9) == 110


def test_a_block_whose_end_was_not_seen_ends_where_another_begins_in_it() -> None:
    lost = [Allocation(1, 0, 100), Allocation(2, 40, 20), Allocation(3, 90, 30)]
    assert most_held(lost, 1, 1) == 100
    assert most_held(lost, 2, 9) == 50
    covered = [Allocation(1, 10, 5), Allocation(2, 20, 5), Allocation(3, 0, 100)]
    assert most_held(covered, 3, 3) == 100
    touching = [Allocation(1, 0, 10), Allocation(2, 10, 10)]
    assert most_held(touching, 2, 2) == 20


def test_buffers_of_an_earlier_collective_do_not_count() -> None:
    """gloo's thread may let go of it last, unseen."""
    copied = [Allocation(1, 0, 100, True), Allocation(2, 200, 10), Allocation(5, 300, 20)]
    assert most_held(copied, 5, 9) == 30
    assert most_held(copied, 0, 9) == 130
    again = [*copied[:2], Allocation(3, 0, -100), Allocation(4, 0, 50), copied[2]]
    assert most_held(again, 5, 9) == 80
