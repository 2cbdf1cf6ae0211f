"""AutoDist's messages and the part of TensorFlow's that a graph item holds.

Field numbers as AutoDist's and TensorFlow's published .proto files give them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, ClassVar

from autosync.graph import DType
from autosync.interop.protobuf_wire import Window


class Spec(IntEnum):
    """The library of an all-reduce."""

    AUTO = 0
    NCCL = 1
    RING = 2


class Compressor(IntEnum):
    """How an all-reduce's messages are packed; all but NONE are lossy."""

    NONE = 0
    HOROVOD = 1
    HOROVOD_EF = 2
    POWER_SGD = 3


@dataclass(frozen=True, slots=True)
class PSSynchronizer:
    reduction_destination: Annotated[str, 1] = ""
    local_replication: Annotated[bool, 2] = False
    sync: Annotated[bool, 3] = False
    staleness: Annotated[int, 4] = 0


@dataclass(frozen=True, slots=True)
class AllReduceSynchronizer:
    spec: Annotated[int, 1] = 0
    compressor: Annotated[int, 2] = 0
    group: Annotated[int, 3] = 0


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """A variable, or one part of it: at most one of the two synchronizers is set."""

    var_name: Annotated[str, 1] = ""
    ps: Annotated[PSSynchronizer | None, 2] = None
    all_reduce: Annotated[AllReduceSynchronizer | None, 3] = None
    partitioner: Annotated[str, 4] = ""
    part_config: Annotated[tuple["NodeConfig", ...], 5] = ()


@dataclass(frozen=True, slots=True)
class GraphConfig:
    replicas: Annotated[tuple[str, ...], 1] = ()


@dataclass(frozen=True, slots=True)
class StrategyMessage:
    id: Annotated[str, 1] = ""
    path: Annotated[str, 2] = ""
    node_config: Annotated[tuple[NodeConfig, ...], 3] = ()
    graph_config: Annotated[GraphConfig | None, 4] = None


@dataclass(frozen=True, slots=True)
class AnyMessage:
    """google.protobuf.Any: a message with the name of its type."""

    type_url: Annotated[str, 1] = ""
    value: Annotated[Window, 2] = field(default_factory=lambda: Window.of(b""))


@dataclass(frozen=True, slots=True)
class VariableDef:
    variable_name: Annotated[str, 1] = ""
    OPEN: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Info:
    variables: Annotated[tuple[AnyMessage, ...], 1] = ()
    OPEN: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class GraphItem:
    """grad_target_pairs: gradient tensor to variable. The key of a sparse gradient is its three
    tensors (indices, values, dense_shape) joined by semicolons."""

    graph_def: Annotated[AnyMessage | None, 1] = None
    grad_target_pairs: Annotated[Mapping[str, str], 2] = field(default_factory=dict)
    info: Annotated[Info | None, 3] = None
    OPEN: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Dim:
    """size: -1 where it is unknown."""

    size: Annotated[int, 1] = 0
    OPEN: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class TensorShapeProto:
    dim: Annotated[tuple[Dim, ...], 2] = ()
    unknown_rank: Annotated[bool, 3] = False
    OPEN: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class AttrValue:
    type: Annotated[int, 6] = 0
    shape: Annotated[TensorShapeProto | None, 7] = None
    OPEN: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class NodeDef:
    """attr: an AttrValue each, left as bytes, since only those of variables are ever read."""

    name: Annotated[str, 1] = ""
    op: Annotated[str, 2] = ""
    input: Annotated[tuple[str, ...], 3] = ()
    device: Annotated[str, 4] = ""
    attr: Annotated[Mapping[str, Window], 5] = field(default_factory=dict)
    OPEN: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class GraphDef:
    node: Annotated[tuple[NodeDef, ...], 1] = ()
    OPEN: ClassVar[bool] = True


DATA_TYPES: dict[DType, int] = {"float32": 1, "float64": 2, "bfloat16": 14, "float16": 19}
"""TensorFlow's DataType numbers of the types that a variable can have here."""
