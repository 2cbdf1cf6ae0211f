"""Each operation of a plan, by itself."""

import torch

from autosync.codes import Op
from autosync.nccl_knobs import NcclKnobs
from autosync.runtime.device.streams import streams_for
from autosync.runtime.transport.base import Operation
from autosync.runtime.transport.process_groups import open_groups, working_group
from tests.autosync.runtime.device.gpus import on_gpus
from tests.autosync.runtime.place import HERE
from tests.autosync.runtime.ranks import Ranks

OPERATIONS = (Op.ALL_REDUCE, Op.REDUCE, Op.BROADCAST, Op.REDUCE_SCATTER, Op.ALL_GATHER, Op.PUSH,
              Op.PULL)  # fmt: skip
TIMES = 3
KNOBS = NcclKnobs(min_ctas=1, max_ctas=2, cga_cluster_size=0)


def operations(rank: int, world: int) -> dict[str, list[float]]:
    """Each operation over all ranks on 2 * world elements of which rank r gives r + 1; an
    all-reduce also on a communicator with knobs."""
    groups = open_groups(working_group(None), HERE.device)
    streams = streams_for(HERE.device, groups.backend)
    everyone = tuple(range(world))
    plain = groups.on(streams).transport("operations", everyone)
    told = groups.on(streams, KNOBS).transport("operations", everyone)
    found = {}
    ways = [(kind.name, kind, plain) for kind in OPERATIONS]
    for name, kind, transport in (*ways, ("with knobs", Op.ALL_REDUCE, told)):
        wire = torch.empty(2 * world, device=HERE.device)
        operation = Operation(kind, rank, world - 1, world, len(wire), 0)
        start = transport.prepare(operation, wire, wire)
        with streams.issuing("operations"):
            for _ in range(TIMES):  # what is prepared once holds
                wire.fill_(rank + 1)
                start().wait()
            streams.synchronize_current()
        got = [wire[span] for span in operation.received()]
        found[name] = torch.cat(got).tolist() if got else []
    made = len(groups.made)
    groups.close()
    assert made == (2 if groups.backend == "nccl" else 1)
    return found


@on_gpus
def test_operations(nccl: Ranks) -> None:
    world = nccl.world
    total = world * (world + 1) / 2
    for rank, found in enumerate(nccl.run(operations)):
        root = rank == world - 1
        others = [(rank + step) % world for step in range(1, world)]
        assert found["ALL_REDUCE"] == found["with knobs"] == [total] * 2 * world
        assert found["REDUCE"] == found["PUSH"] == ([total] * 2 * world if root else [])
        assert found["BROADCAST"] == found["PULL"] == ([] if root else [float(world)] * 2 * world)
        assert found["REDUCE_SCATTER"] == [total] * 2
        assert found["ALL_GATHER"] == [float(peer + 1) for peer in others for _ in range(2)]
