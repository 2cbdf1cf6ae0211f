"""Integer codes of the array forms (Population, PlanTable). Documents use words instead."""

from enum import IntEnum


class Method(IntEnum):
    """How a shard is synchronized."""

    PARAMETER_SERVER = 0
    ALL_REDUCE = 1
    REDUCE_SCATTER = 2
    ALL_GATHER = 3
    FACTORS = 4


class Order(IntEnum):
    """Sending order of a strategy; DDP runs torch's own."""

    FIFO = 0
    PRIORITY = 1
    EXPLICIT = 2
    DDP = 3


class Op(IntEnum):
    """What a message does within each of its teams of ranks.

    PUSH: every rank sends to the root, which sums. PULL: the root sends to every rank.
    SPARSE_*: touched rows with their indices. FACTOR_ALL_GATHER: sufficient factors.
    """

    ALL_REDUCE = 0
    REDUCE = 1
    BROADCAST = 2
    REDUCE_SCATTER = 3
    ALL_GATHER = 4
    PUSH = 5
    PULL = 6
    SPARSE_ALL_GATHER = 7
    FACTOR_ALL_GATHER = 8
    SPARSE_PUSH = 9
    SPARSE_PULL = 10

    @property
    def to_owner(self) -> bool:
        """Brings gradients to the root, which sums and updates."""
        return self in (Op.PUSH, Op.SPARSE_PUSH)

    @property
    def from_owner(self) -> bool:
        """Brings the root's new values to the ranks."""
        return self in (Op.PULL, Op.SPARSE_PULL)

    @property
    def sparse(self) -> bool:
        """Touched rows and their indices."""
        return self in (Op.SPARSE_ALL_GATHER, Op.SPARSE_PUSH, Op.SPARSE_PULL)

    @property
    def ragged(self) -> bool:
        """Only the sender knows the length."""
        return self.sparse or self is Op.FACTOR_ALL_GATHER


class Channel(IntEnum):
    """Messages of a channel are issued one after another, in the plan's order, on every rank.

    GATHER: all-gathers that leave while the wire is idle; those of other schedules are on VALUE.
    """

    GRADIENT = 0
    VALUE = 1
    PUSH = 2
    PULL = 3
    LOCAL_REDUCE = 4
    LOCAL_BROADCAST = 5
    GATHER = 6


class Update(IntEnum):
    """Who applies the optimizer once a message has arrived.

    NONE: nobody yet (a further message follows). REPLICATED: every replica, everything.
    OWNER: the root; SHARD: every replica, its own part. After the last two a further message
    carries new values, and it starts only when the training script has called `step()`.
    """

    NONE = 0
    REPLICATED = 1
    OWNER = 2
    SHARD = 3

    @property
    def leaves_values(self) -> bool:
        """Whether the next message of the bucket carries what this update makes."""
        return self in (Update.OWNER, Update.SHARD)


POWERSGD = 16
"""Encoding code of PowerSGD with rank r is POWERSGD + r."""

MAX_POWERSGD_RANK = 255 - POWERSGD
"""The code is a byte."""

ENCODINGS = ("none", "fp16", "bf16")
"""Encoding codes 0, 1, 2."""
