"""ONNX files: as torch's own exporter writes them, and by hand."""

import io
import warnings
from typing import Any
from unittest import mock

import torch
from torch import nn

from autosync.interop.onnx_messages import (
    OnnxDimension,
    OnnxGraph,
    OnnxModel,
    OnnxNode,
    OnnxShape,
    OnnxTensor,
    OnnxTensorType,
    OnnxType,
    OnnxValueInfo,
)
from autosync.interop.protobuf_records import encode

EXPORTER = "torch.onnx._internal.torchscript_exporter.onnx_proto_utils._add_onnxscript_fn"


def exported(module: nn.Module, inputs: tuple[Any, ...], **options: Any) -> bytes:
    """What torch.onnx.export writes of a module in training. Its last step, functions that a user
    adds, needs the package onnx and is left out; so are its warnings."""
    file = io.BytesIO()
    training = torch.onnx.TrainingMode.TRAINING
    with warnings.catch_warnings(), mock.patch(EXPORTER, lambda data, _: data):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            inputs,
            file,  # type: ignore[arg-type]  # this exporter writes to open files, too
            dynamo=False,
            training=training,
            do_constant_folding=False,
            **options,
        )
    return file.getvalue()


def value(name: str, sizes: tuple[int | str, ...], data_type: int = 1) -> OnnxValueInfo:
    dimensions = tuple(
        OnnxDimension(param=size) if isinstance(size, str) else OnnxDimension(value=size)
        for size in sizes
    )
    return OnnxValueInfo(name, OnnxType(OnnxTensorType(data_type, OnnxShape(dimensions))))


def weight(name: str, *dims: int) -> OnnxTensor:
    """Without its values."""
    return OnnxTensor(dims, 1, name=name)


def model(
    nodes: tuple[OnnxNode, ...],
    inputs: tuple[OnnxValueInfo, ...],
    weights: tuple[OnnxTensor, ...] = (),
) -> bytes:
    return encode(OnnxModel(8, OnnxGraph(nodes, "g", weights, inputs)))
