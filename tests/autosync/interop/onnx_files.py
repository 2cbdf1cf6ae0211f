"""ONNX files: as torch's own exporter writes them, and by hand."""

import io
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from onnx import TensorProto, helper
from torch import nn

OPSET = 17


def exported(module: nn.Module, inputs: tuple[Any, ...], **options: Any) -> bytes:
    """What torch.onnx.export writes of a module in training, without its warnings."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            inputs,
            file,  # type: ignore[arg-type]  # this exporter writes to open files, too
            dynamo=False,
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
            **options,
        )
    return file.getvalue()


def node(kind: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> Any:
    """inputs, outputs: names with a space between."""
    return helper.make_node(kind, inputs.split(), outputs.split(), name, **attributes)


def value(name: str, sizes: tuple[int | str, ...], data_type: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, data_type, sizes)


def weight(name: str, *dims: int) -> Any:
    """Without its values."""
    return TensorProto(name=name, dims=dims, data_type=TensorProto.FLOAT)


def numbers(name: str, *given: int) -> Any:
    return helper.make_tensor(name, TensorProto.INT64, (len(given),), given)


def model(nodes: Sequence[Any], inputs: Sequence[Any], weights: Sequence[Any] = ()) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, [], weights)
    opset = helper.make_opsetid("", OPSET)
    data: bytes = helper.make_model(graph, opset_imports=[opset]).SerializeToString()
    return data
