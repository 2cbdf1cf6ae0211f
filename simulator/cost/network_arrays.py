"""What messages cost on a cluster: startup, and the time they hold each link.

Every message that plans of a cluster can hold is of some class (operation, teams, root, and where
its cost is not one line in its bytes, their range). A class has a startup and, per byte that one
replica contributes, the seconds it occupies each resource: each NIC's two directions, each device's
port to the others of its node, and stated links.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autosync.codes import Op
from autosync.plan.plan_table import PlanTable

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OwnerLoads:
    """Seconds per byte that messages of S owners, of G kinds, keep L links busy.

    kind i64[S]: of each owner. shared f64[G, L]: on links that owners share. own f64[G]: on a link
    of the owner alone; 0 where `shared` tells owners apart.
    """

    kind: NDArray[np.int64]
    shared: F64
    own: F64


@dataclass(frozen=True, slots=True)
class Network:
    """K classes of messages over R resources.

    message_class i32[11, T, S]: by operation and kinds of teams and of roots (see `class_of`); -1
        for messages that no plan holds. The first class of the message; those of more bytes
        follow it.
    team_kind i64[teams], root_kind i64[servers + 1]: of each of the plans' teams, and of each
        root, counted from -1, which is none. Alike ones are of one kind.
    least_bytes f64[K]: from which on messages are of the class. last_class i32[K]: of the classes
        of the same message.
    startup_seconds f64[K]; copy_seconds_per_byte f64[K]: an engine's own copies.
    host_seconds, host_seconds_per_byte f64[K]: for which a message keeps the hosts' processors.
    link_seconds f64[K]: for which a message holds its links besides its bytes.
    seconds_per_byte f64[K]: of a message alone: the time at its slowest resource, or on its
        slowest connection where connections have a rate of their own.
    equation_seconds_per_byte f64[K]: the network term of equation 2 (servers: the sum over
        workers) and equation 3 (collectives: over the lowest bandwidth).
    server i16[K]: the root of the messages of a class (one of alike ones); -1 without one, and for
        collectives of NCCL's model.
    load f64[K, R]: seconds per byte that a resource is held; of alike ones that stand as one, the
        mean. resources: their names.
    utilization f64[K, U]: the same over seconds_per_byte, in [0, 1]. flows f64[K, U]: pairs of
        ranks between which a message flows over each resource. Equal columns once.
    ports bool[U]: columns that are devices' ports.
    in_flight: collectives at once per channel. engine_seconds: an engine's for each message.
    transfer_slowdown, compute_slowdown: what transfers and compute take longer beside each other;
        see `Cluster`.
    owner_seconds_per_byte f64[K]: for which a message holds the slowest link of its root, where
        `load` does not tell roots apart; 0 elsewhere.
    """

    message_class: NDArray[np.int32]
    team_kind: NDArray[np.int64]
    root_kind: NDArray[np.int64]
    least_bytes: F64
    last_class: NDArray[np.int32]
    operations: NDArray[np.uint8]
    startup_seconds: F64
    copy_seconds_per_byte: F64
    host_seconds: F64
    host_seconds_per_byte: F64
    link_seconds: F64
    seconds_per_byte: F64
    equation_seconds_per_byte: F64
    server: NDArray[np.int16]
    load: F64
    resources: tuple[str, ...]
    utilization: F64
    flows: F64
    ports: NDArray[np.bool_]
    in_flight: int
    engine_seconds: float
    transfer_slowdown: float
    compute_slowdown: float
    owner_seconds_per_byte: F64

    def classes_of(self, plans: PlanTable) -> NDArray[np.int32]:
        """The class of every message of the plans, `(messages,)`."""
        return self.class_of(plans.operation, plans.ranks, plans.root, plans.wire_bytes)

    def class_of(
        self,
        operation: ArrayLike,
        teams: ArrayLike,
        root: ArrayLike = -1,
        wire_bytes: ArrayLike = 0,
    ) -> NDArray[np.int32]:
        """The classes of messages by operation, teams, root (-1: none) and bytes; all broadcast."""
        kinds = self.team_kind[np.asarray(teams, dtype=np.int64)]
        roots = self.root_kind[np.add(root, 1, dtype=np.int64)]
        found = self.message_class[np.asarray(operation), kinds, roots]
        shape = np.broadcast_shapes(np.shape(found), np.shape(wire_bytes))
        # writable as what `np.where` returns: kernels are compiled again for arrays that are not
        classes: NDArray[np.int32] = np.broadcast_to(found, shape).copy()
        for _ in range(self.most_classes - 1):
            following = np.minimum(classes + 1, self.last_class[classes])
            longer = np.asarray(wire_bytes) >= self.least_bytes[following]
            classes = np.where(longer, following, classes)
        return classes

    @property
    def most_classes(self) -> int:
        """Of one message, by its bytes."""
        _, counts = np.unique(self.last_class, return_counts=True)
        return int(counts.max(initial=1))

    @property
    def least_load(self) -> F64:
        """`load` of a message of any size: the least over its classes, `(K, R)`."""
        if self.most_classes == 1:
            return self.load
        starts = np.unique(self.last_class, return_inverse=True)[1]
        least = np.full((int(starts.max()) + 1, self.load.shape[1]), np.inf)
        np.minimum.at(least, starts, self.load)
        result: F64 = least[starts]
        return result

    def owner_loads(self, operation: int, teams: int, servers: int) -> OwnerLoads:
        """Of large messages of owners 0 to `servers` - 1."""
        classes = self.last_class[self.class_of(operation, teams, np.arange(servers))]
        kinds, kind = np.unique(classes, return_inverse=True)
        return OwnerLoads(kind, self.load[kinds], self.owner_seconds_per_byte[kinds])

    def busiest(
        self, plans: PlanTable, rows: slice, times: NDArray[np.int64] | int = 1
    ) -> tuple[str, float]:
        """The link that these messages hold longest, and for how many seconds. times: how often
        each travels."""
        kinds = self.classes_of(plans)[rows]
        wire = times * plans.wire_bytes[rows].astype(np.float64)
        busy, root = wire @ self.load[kinds], plans.root[rows]
        name, seconds = self.resources[int(busy.argmax())], float(busy.max())
        own = self.owner_seconds_per_byte[kinds] * wire
        if own.any():
            shared = (wire[root < 0] @ self.load[kinds[root < 0]]).max()
            inwards = np.isin(plans.operation[rows], [each for each in Op if each.to_owner])
            place = 2 * root.astype(np.int64) + inwards
            held = np.bincount(place[root >= 0], weights=own[root >= 0]) + shared
            if held.max() > seconds:
                server, way = divmod(int(held.argmax()), 2)
                return f"link {'to' if way else 'from'} server {server}", float(held.max())
        return name, seconds

    @property
    def message_seconds(self) -> F64:
        """What a message of each class costs besides its bytes, `(K,)`."""
        result: F64 = self.startup_seconds + self.host_seconds + self.engine_seconds
        return result
