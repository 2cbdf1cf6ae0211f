"""AutoDist's, TensorFlow's and Chakra's messages, declared to the protobuf library: what reads
and writes them there owes nothing to the code under test."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

F = descriptor_pb2.FieldDescriptorProto
SCALARS = {"string": F.TYPE_STRING, "bool": F.TYPE_BOOL, "int32": F.TYPE_INT32}
SCALARS |= {"int64": F.TYPE_INT64, "uint64": F.TYPE_UINT64, "bytes": F.TYPE_BYTES}

MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "autodist.proto.PSSynchronizer": {
        "reduction_destination": (1, "string"),
        "local_replication": (2, "bool"),
        "sync": (3, "bool"),
        "staleness": (4, "int32"),
    },
    "autodist.proto.AllReduceSynchronizer": {
        "spec": (1, "int32"),
        "compressor": (2, "int32"),
        "group": (3, "int32"),
    },
    "autodist.proto.Node": {
        "var_name": (1, "string"),
        "PSSynchronizer": (2, "autodist.proto.PSSynchronizer"),
        "AllReduceSynchronizer": (3, "autodist.proto.AllReduceSynchronizer"),
        "partitioner": (4, "string"),
        "part_config": (5, "repeated autodist.proto.Node"),
    },
    "autodist.proto.GraphConfig": {"replicas": (1, "repeated string")},
    "autodist.proto.Strategy": {
        "id": (1, "string"),
        "path": (2, "string"),
        "node_config": (3, "repeated autodist.proto.Node"),
        "graph_config": (4, "autodist.proto.GraphConfig"),
    },
    "tensorflow.Any": {"type_url": (1, "string"), "value": (2, "bytes")},
    "autodist.proto.Info": {
        "variables": (1, "repeated tensorflow.Any"),
        "table_initializers": (2, "repeated string"),
    },
    "autodist.proto.Pair": {"key": (1, "string"), "value": (2, "string")},
    "autodist.proto.GraphItem": {
        "graph_def": (1, "tensorflow.Any"),
        "grad_target_pairs": (2, "repeated autodist.proto.Pair"),
        "info": (3, "autodist.proto.Info"),
    },
    "tensorflow.VariableDef": {"variable_name": (1, "string"), "trainable": (7, "bool")},
    "tensorflow.Dim": {"size": (1, "int64"), "name": (2, "string")},
    "tensorflow.TensorShapeProto": {
        "dim": (2, "repeated tensorflow.Dim"),
        "unknown_rank": (3, "bool"),
    },
    "tensorflow.AttrValue": {
        "s": (2, "bytes"),
        "i": (3, "int64"),
        "type": (6, "int32"),
        "shape": (7, "tensorflow.TensorShapeProto"),
    },
    "tensorflow.Attr": {"key": (1, "string"), "value": (2, "tensorflow.AttrValue")},
    "tensorflow.NodeDef": {
        "name": (1, "string"),
        "op": (2, "string"),
        "input": (3, "repeated string"),
        "device": (4, "string"),
        "attr": (5, "repeated tensorflow.Attr"),
    },
    "tensorflow.GraphDef": {"node": (1, "repeated tensorflow.NodeDef"), "version": (3, "int32")},
    "chakra.Attribute": {
        "name": (1, "string"),
        "int64_val": (9, "int64"),
        "uint64_val": (13, "uint64"),
        "bool_val": (27, "bool"),
        "string_val": (29, "string"),
    },
    "chakra.Metadata": {"version": (1, "string"), "attr": (2, "repeated chakra.Attribute")},
    "chakra.Values": {"values": (1, "string"), "shapes": (2, "string"), "types": (3, "string")},
    "chakra.ChakraNode": {
        "id": (1, "uint64"),
        "name": (2, "string"),
        "type": (3, "int32"),
        "ctrl_deps": (4, "repeated uint64"),
        "data_deps": (5, "repeated uint64"),
        "start_time_micros": (6, "uint64"),
        "duration_micros": (7, "uint64"),
        "inputs": (8, "chakra.Values"),
        "outputs": (9, "chakra.Values"),
        "attr": (10, "repeated chakra.Attribute"),
    },
}
"""Enums are as int32 on the wire, and a map as repeated messages of key and value."""


def _declared() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="messages.proto", syntax="proto3")
    for full_name, fields in MESSAGES.items():
        declared = file.message_type.add(name=full_name.replace(".", "_"))
        for name, (number, kind) in fields.items():
            repeated, _, of = kind.rpartition(" ")
            field = declared.field.add(name=name, number=number)
            field.label = F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL
            if of in SCALARS:
                field.type = SCALARS[of]
            else:
                field.type = F.TYPE_MESSAGE
                field.type_name = "." + of.replace(".", "_")
    pool.Add(file)
    return {
        full_name.rpartition(".")[2]: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(full_name.replace(".", "_"))
        )
        for full_name in MESSAGES
    }


P = _declared()
"""The library's class of each message, by its short name."""


def parsed(name: str, data: bytes) -> Any:
    message = P[name]()
    message.ParseFromString(data)
    return message
