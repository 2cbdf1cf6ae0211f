"""Each operation of a plan, by itself."""

from dataclasses import replace

import torch

from autosync.codes import Op
from autosync.runtime.device.streams import streams_for
from autosync.runtime.transport.operations import operation_start
from autosync.runtime.transport.process_groups import open_groups, working_group
from autosync.runtime.transport.team_role import TeamRole
from tests.autosync.runtime.cases import Case, make_model, plan
from tests.autosync.runtime.device.gpus import on_gpus
from tests.autosync.runtime.place import HERE
from tests.autosync.runtime.ranks import Ranks

OPERATIONS = (Op.ALL_REDUCE, Op.REDUCE, Op.BROADCAST, Op.REDUCE_SCATTER, Op.ALL_GATHER, Op.PUSH,
              Op.PULL)  # fmt: skip
TIMES = 3


def operations(rank: int, world: int) -> dict[str, list[float]]:
    """Each operation over all ranks on 2 * world elements of which rank r gives r + 1."""
    given = plan(Case(), make_model("mlp"), world)
    everyone = (tuple(range(world)),)
    groups = open_groups(working_group(None), HERE.device)
    streams = streams_for(HERE.device, groups.backend)
    groups = groups.on(streams)
    found = {}
    for operation in OPERATIONS:
        message = replace(given.messages[0], operation=operation, root=world - 1, teams=0)
        alone = replace(given, messages=(message,), teams=(everyone,))
        wire = torch.empty(2 * world, device=HERE.device)
        start = operation_start(alone, 0, groups, "operations", len(wire), wire, wire)
        assert start is not None
        with streams.issuing("operations"):
            for _ in range(TIMES):  # what is prepared once holds
                wire.fill_(rank + 1)
                start()()
            streams.synchronize_current()
        role = TeamRole(operation, rank, world - 1, world, 2 * world, 0)
        got = [wire[span] for span in role.received()]
        found[operation.name] = torch.cat(got).tolist() if got else []
    groups.close()
    return found


@on_gpus
def test_operations(nccl: Ranks) -> None:
    world = nccl.world
    total = world * (world + 1) / 2
    for rank, found in enumerate(nccl.run(operations)):
        root = rank == world - 1
        others = [(rank + step) % world for step in range(1, world)]
        assert found["ALL_REDUCE"] == [total] * 2 * world
        assert found["REDUCE"] == found["PUSH"] == ([total] * 2 * world if root else [])
        assert found["BROADCAST"] == found["PULL"] == ([] if root else [float(world)] * 2 * world)
        assert found["REDUCE_SCATTER"] == [total] * 2
        assert found["ALL_GATHER"] == [float(peer + 1) for peer in others for _ in range(2)]
