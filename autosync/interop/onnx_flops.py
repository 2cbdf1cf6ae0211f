"""FLOPs of ONNX nodes, counted as torch counts those of its own operators: two for each
multiplication with an addition, in matrix products and convolutions only."""

import math

from autosync.interop.onnx_constants import KnownValues, Shape
from autosync.interop.onnx_messages import OnnxNode

TYPE_NAMES = {
    "Conv": "convolution",
    "ConvTranspose": "convolution",
    "Gemm": "addmm",
    "MatMul": "matmul",
    "Gather": "embedding",
    "BatchNormalization": "native_batch_norm",
    "LayerNormalization": "native_layer_norm",
}
"""What torch calls them; the others by their own name."""


def forward_flops(node: OnnxNode, known: KnownValues, output: Shape) -> int:
    """output: shape of the first output."""
    shapes = [known.shapes.get(name) for name in node.input]
    if len(shapes) < 2 or shapes[0] is None or shapes[1] is None:
        return 0
    left, right = shapes[0], shapes[1]
    match node.op_type:
        case "Conv":
            return 2 * math.prod(output) * math.prod(right[1:])
        case "ConvTranspose":
            return 2 * math.prod(left) * math.prod(right[1:])
        case "Gemm":
            inner = left[:1] if node.number("transA") else left[1:2]
            return 2 * math.prod(output) * math.prod(inner)
        case "MatMul":
            return 2 * math.prod(output) * (left[-1] if left else 1)
        case "LSTM" | "GRU" | "RNN":
            recurrent = shapes[2] if len(shapes) > 2 else None
            return 2 * math.prod(left[:2]) * (math.prod(right) + math.prod(recurrent or (0,)))
    return 0


def products(node: OnnxNode, known: KnownValues) -> list[tuple[str, int]]:
    """Inputs that a matrix product multiplies with rows of activations, and how many rows."""
    if node.op_type not in ("Gemm", "MatMul") or len(node.input) < 2:
        return []
    left = known.shapes.get(node.input[0])
    right = known.shapes.get(node.input[1])
    if left is None or right is None or len(left) < 2 or len(right) != 2:
        return []
    rows = left[1] if node.op_type == "Gemm" and node.number("transA") else math.prod(left[:-1])
    return [(node.input[1], rows)]
