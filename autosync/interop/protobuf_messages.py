"""Messages of AutoDist and TensorFlow, declared to the protobuf library from one table.

Field numbers as the published .proto files give them; fields that are not read are left out, and
parsing skips them. Enums are int32 on the wire, and a map is repeated messages of key and value.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from autosync.errors import InvalidInput
from autosync.extras import needs

with needs("protobuf", "a file of AutoDist"):
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

MESSAGES: dict[str, str] = {
    # AutoDist: strategy.proto, synchronizers.proto, graphitem.proto
    "PSSynchronizer": "reduction_destination=1:string local_replication=2:bool sync=3:bool "
    "staleness=4:int32",
    "AllReduceSynchronizer": "spec=1:int32 compressor=2:int32 group=3:int32",
    "Node": "var_name=1:string PSSynchronizer=2:PSSynchronizer "
    "AllReduceSynchronizer=3:AllReduceSynchronizer partitioner=4:string part_config=5:Node*",
    "GraphConfig": "replicas=1:string*",
    "Strategy": "id=1:string path=2:string node_config=3:Node* graph_config=4:GraphConfig",
    "Any": "type_url=1:string value=2:bytes",
    "Info": "variables=1:Any*",
    "Pair": "key=1:string value=2:string",
    "GraphItem": "graph_def=1:Any grad_target_pairs=2:Pair* info=3:Info",
    # TensorFlow: variable.proto, tensor_shape.proto, attr_value.proto, node_def.proto, graph.proto
    "VariableDef": "variable_name=1:string trainable=7:bool",
    "Dim": "size=1:int64 name=2:string",
    "TensorShapeProto": "dim=2:Dim* unknown_rank=3:bool",
    "AttrValue": "s=2:bytes i=3:int64 type=6:int32 shape=7:TensorShapeProto",
    "Attr": "key=1:string value=2:AttrValue",
    "NodeDef": "name=1:string op=2:string input=3:string* device=4:string attr=5:Attr*",
    "GraphDef": "node=1:NodeDef* version=3:int32",
}
"""By message, its fields as `name=number:type`; * stands behind a repeated one."""


@cache
def _classes() -> dict[str, Any]:
    declared = descriptor_pb2.FileDescriptorProto(name="autosync.proto", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for message_name, fields in MESSAGES.items():
        message = declared.message_type.add(name=message_name)
        for field in fields.split():
            name, _, rest = field.partition("=")
            number, _, kind = rest.partition(":")
            made = message.field.add(name=name, number=int(number))
            made.label = kinds.LABEL_REPEATED if kind[-1] == "*" else kinds.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            if kind in MESSAGES:
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".{kind}"
            else:
                made.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(declared)
    found = ((name, pool.FindMessageTypeByName(name)) for name in MESSAGES)
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found}


def new_message(kind: str, **fields: Any) -> Any:
    return _classes()[kind](**fields)


def parse_message(
    kind: str, data: bytes, source: str, most_bytes: int, *, allow_unknown: bool = True
) -> Any:
    """A message of at most `most_bytes`. Parsed it takes up to some forty times as much memory.

    allow_unknown: skip fields that are not in the table. A strategy must have none, since one that
        is not read could change its meaning.

    Raises:
        InvalidInput: it is larger, damaged, or has a field that is not known.
    """
    if len(data) > most_bytes:
        raise _refused(source, kind, f"has {len(data)} bytes, more than {most_bytes}")
    try:
        message = _classes()[kind].FromString(data)
    except DecodeError as error:
        raise _refused(source, kind, f"is damaged ({error})") from None
    if not allow_unknown and (unknown := next(_unknown_fields(message), None)):
        raise _refused(source, kind, f"has a field that is not known: {unknown}")
    return message


def _unknown_fields(message: Any) -> Iterator[str]:
    for field in UnknownFieldSet(message):
        yield f"number {field.field_number} of {message.DESCRIPTOR.name}"
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for inner in value if descriptor.is_repeated else (value,):
                yield from _unknown_fields(inner)


def _refused(source: str, kind: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"{source}: the {kind} {why}.",
        thing=source,
        value=why,
        remedy="The file is damaged, or it is another kind of file.",
    )
