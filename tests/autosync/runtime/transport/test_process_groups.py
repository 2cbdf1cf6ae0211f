"""Process groups that are kept for the plans to come, and end on all their members at once."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from autosync.errors import InvalidInput
from autosync.runtime.transport import process_groups
from autosync.runtime.transport.nccl import WATCHDOG_GRACE, GroupIdentity, nccl_options
from autosync.runtime.transport.process_groups import Groups, working_group
from autosync.trials import session
from autosync.trials.session import ReusedGroups
from tests.autosync.runtime.ranks import Ranks

Team = tuple[int, ...]

TEAMS: tuple[Team, ...] = ((0, 1), (0, 2), (0, 1, 2), (1, 2))
"""Rank 0 is in three of the first three, rank 2 in two."""


def sum_of(groups: Groups, team: Team) -> float:
    mine = torch.tensor([2.0**groups.rank])
    groups.get("messages", team).allreduce([mine], dist.AllreduceOptions()).wait()
    return float(mine)


def kept(rank: int, world: int, most: int, most_bytes: int) -> list[list[Team]]:
    """The teams of a rank's groups that are open when each plan begins. Each group takes 100 bytes
    of a device; each plan has one team, and the last uses all of them again."""
    taken = [0]
    plain = Groups._new

    def counting(self: Groups, backend: str, purpose: str, team: Team) -> object:
        taken[0] += 100
        return plain(self, backend, purpose, team)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Groups, "_new", counting)
        patch.setattr(process_groups, "free_memory_bytes", lambda device: 10_000 - taken[0])
        patch.setattr(session, "MOST_GROUPS", most)
        patch.setattr(session, "_most_bytes", lambda device: most_bytes)
        reused = ReusedGroups()
        found = []
        for team in (*TEAMS, *TEAMS):
            groups = reused.get(dist.group.WORLD)
            found.append([team for purpose, team, _ in groups.made if purpose == "messages"])
            groups.get("control", (0, 1, 2))
            if rank in team:
                assert sum_of(groups, team) == sum(2.0**member for member in team)
        reused.close()
    return found


@pytest.mark.parametrize(("most", "most_bytes"), [(3, 1 << 20), (100, 300)])
def test_least_recently_used_groups_end_on_all_ranks(
    three: Ranks, most: int, most_bytes: int
) -> None:
    """Rank 0 has too many first. Its peers end theirs of the same plans with it, and all meet in
    new ones later."""
    first, second, third = three.run(kept, most, most_bytes)
    assert first[3] == [(0, 2), (0, 1, 2)]
    assert second[3] == [(0, 1, 2)]
    assert third[3] == [(0, 2), (0, 1, 2)]
    assert max(map(len, first)) == 2


def test_groups_within_bounds_stay(three: Ranks) -> None:
    for rank, found in enumerate(three.run(kept, 100, 1 << 20)):
        assert found[-1] == [team for team in TEAMS if rank in team]


def test_torch_is_told_whose_group_it_is() -> None:
    made = SimpleNamespace()
    options = nccl_options(made, timedelta(seconds=40), GroupIdentity("autosync/all/4-6", (4, 6)))
    assert options._timeout == timedelta(seconds=40) + WATCHDOG_GRACE
    assert options.group_name == "autosync/all/4-6"
    assert options.global_ranks_in_group == [4, 6]


def test_a_rank_outside_of_a_group_is_told_so() -> None:
    """`new_group` gives it a number in place of the group."""
    outside: Any = dist.GroupMember.NON_GROUP_MEMBER
    with pytest.raises(InvalidInput, match="not in the process group"):
        working_group(outside)
