"""Shapes of ONNX values: what a node makes of its inputs' shapes."""

import math
from collections.abc import Callable, Sequence

from autosync.graph import MAX_SHAPE
from autosync.interop.onnx_constants import KnownValues, Shape
from autosync.interop.onnx_messages import OnnxNode


def infer_outputs(node: OnnxNode, known: KnownValues) -> list[Shape | None]:
    """Shapes of the node's outputs; None where they are not known."""
    if node.op_type == "Split":
        return [_possible(shape) for shape in _split(node, known)]
    first = infer_output(node, known)
    others = (
        first[1:] if first and node.op_type in RECURRENT else first
    )  # the state after all steps
    return [first, *[others] * (len(node.output) - 1)]


def _split(node: OnnxNode, known: KnownValues) -> list[Shape | None]:
    whole, parts = known.shapes.get(node.input[0] if node.input else ""), len(node.output)
    sizes = node.numbers("split") or (known.numbers.get(node.input[1]) if node.input[1:] else None)
    axis = node.number("axis")
    if whole is None or not -len(whole) <= axis < len(whole):
        return [None] * parts
    length = -(-whole[axis] // parts)
    equal = [max(0, min(length, whole[axis] - i * length)) for i in range(parts)]
    given = sizes if sizes and len(sizes) == parts else equal
    axis %= len(whole)
    return [(*whole[:axis], size, *whole[axis + 1 :]) for size in given]


def infer_output(node: OnnxNode, known: KnownValues) -> Shape | None:
    """Shape of the node's first output; None where it is not known."""
    shapes = [known.shapes.get(name) for name in node.input]
    rule = RULES.get(node.op_type)
    try:
        if node.op_type in BROADCASTING:
            found = broadcast([known.shapes.get(name) for name in node.input if name])
        elif node.op_type in SAME:
            found = shapes[0]
        else:
            found = rule(node, shapes, known) if rule else None
    except (IndexError, ValueError, ZeroDivisionError):  # a node that ONNX itself would refuse
        return None
    return _possible(found)


def _possible(shape: Shape | None) -> Shape | None:
    if shape is None or len(shape) > MAX_SHAPE or any(size < 0 for size in shape):
        return None
    return shape


def broadcast(shapes: Sequence[Shape | None]) -> Shape | None:
    """numpy's rule; None where a shape is missing."""
    whole = [shape for shape in shapes if shape is not None]
    if len(whole) < len(shapes) or not whole:
        return None
    length = max(map(len, whole))
    padded = [(1,) * (length - len(shape)) + shape for shape in whole]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


def _windows(node: OnnxNode, spatial: Shape, kernel: Shape) -> Shape:
    """Places of a sliding window on each axis."""
    axes = len(kernel)
    strides = node.numbers("strides") or (1,) * axes
    dilations = node.numbers("dilations") or (1,) * axes
    pads = node.numbers("pads") or (0,) * (2 * axes)
    automatic = node.named("auto_pad")
    mode = automatic.s.cut() if automatic else b"NOTSET"
    places = []
    for axis, size in enumerate(spatial):
        if mode in (b"SAME_UPPER", b"SAME_LOWER"):
            places.append(math.ceil(size / strides[axis]))
            continue
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        free = size + pads[axis] + pads[axis + axes] - reach
        rounded = math.ceil if node.number("ceil_mode") else math.floor
        places.append(rounded(free / strides[axis]) + 1)
    return tuple(places)


Shapes = list[Shape | None]


def _conv(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    image, weight = shapes[0], shapes[1]
    if image is None or weight is None:
        return None
    return (image[0], weight[0], *_windows(node, image[2:], weight[2:]))


def _conv_transpose(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    image, weight = shapes[0], shapes[1]
    if image is None or weight is None:
        return None
    axes = len(image) - 2
    strides = node.numbers("strides") or (1,) * axes
    pads = node.numbers("pads") or (0,) * (2 * axes)
    extra = node.numbers("output_padding") or (0,) * axes
    spatial = (
        strides[i] * (image[i + 2] - 1) + extra[i] + weight[i + 2] - pads[i] - pads[i + axes]
        for i in range(axes)
    )
    return (image[0], weight[1] * node.number("group", 1), *spatial)


def _pool(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    image = shapes[0]
    if image is None:
        return None
    return (*image[:2], *_windows(node, image[2:], node.numbers("kernel_shape")))


def _global_pool(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    return shapes[0] and (*shapes[0][:2], *(1,) * (len(shapes[0]) - 2))


def _gemm(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    left, right = shapes[0], shapes[1]
    if left is None or right is None:
        return None
    return (left[1] if node.number("transA") else left[0]), (
        right[0] if node.number("transB") else right[1]
    )


def _matmul(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    left, right = shapes[0], shapes[1]
    if left is None or right is None:
        return None
    if len(left) < 2 or len(right) < 2:
        return (*left[:-1], *right[-1:]) if len(left) > 1 else right[:-2] + right[-1:]
    outer = broadcast((left[:-2], right[:-2]))
    return None if outer is None else (*outer, left[-2], right[-1])


def _reshape(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    whole, wanted = shapes[0], known.numbers.get(node.input[1])
    if whole is None or wanted is None:
        return None
    sizes = [whole[i] if size == 0 and i < len(whole) else size for i, size in enumerate(wanted)]
    if -1 in sizes:
        rest = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = math.prod(whole) // rest
    return tuple(sizes)


def _flatten(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    axis = node.number("axis", 1)
    return shapes[0] and (math.prod(shapes[0][:axis]), math.prod(shapes[0][axis:]))


def _transpose(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    whole = shapes[0]
    if whole is None:
        return None
    order = node.numbers("perm") or tuple(reversed(range(len(whole))))
    return tuple(whole[axis] for axis in order)


def _concat(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    whole = [shape for shape in shapes if shape is not None]
    if len(whole) < len(shapes):
        return None
    joined = list(whole[0])
    joined[node.number("axis")] = sum(shape[node.number("axis")] for shape in whole)
    return tuple(joined)


def _gather(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    table, places = shapes[0], shapes[1]
    if table is None or places is None:
        return None
    axis = node.number("axis") % len(table)
    return (*table[:axis], *places, *table[axis + 1 :])


def _axes(node: OnnxNode, known: KnownValues) -> tuple[int, ...] | None:
    """Of a Squeeze, an Unsqueeze or a reduction: an attribute, since opset 13 an input."""
    given = node.numbers("axes")
    return given or (known.numbers.get(node.input[1]) if len(node.input) > 1 else ())


def _unsqueeze(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    axes, whole = _axes(node, known), shapes[0]
    if axes is None or whole is None:
        return None
    rank = len(whole) + len(axes)
    rest, new = iter(whole), {axis % rank for axis in axes}
    return tuple(1 if axis in new else next(rest) for axis in range(rank))


def _squeeze(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    axes, whole = _axes(node, known), shapes[0]
    if axes is None or whole is None:
        return None
    gone = {axis % len(whole) for axis in axes} or {i for i, size in enumerate(whole) if size == 1}
    return tuple(size for axis, size in enumerate(whole) if axis not in gone)


def _reduction(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    axes, whole = _axes(node, known), shapes[0]
    if axes is None or whole is None:
        return None
    gone = {axis % len(whole) for axis in axes} or set(range(len(whole)))
    kept = node.number("keepdims", 1)
    return tuple(
        1 if axis in gone else size for axis, size in enumerate(whole) if axis not in gone or kept
    )


def _expand(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    return broadcast((shapes[0], known.numbers.get(node.input[1])))


def _slice(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    whole = shapes[0]
    given = [known.numbers.get(name) for name in node.input[1:]]
    if whole is None or any(each is None for each in given):
        return None
    starts, ends = given[0] or (), given[1] or ()
    axes = given[2] if len(given) > 2 else tuple(range(len(starts)))
    steps = given[3] if len(given) > 3 else (1,) * len(starts)
    sizes = list(whole)
    for start, end, axis, step in zip(starts, ends, axes or (), steps or (), strict=True):
        sizes[axis] = len(range(*slice(start, end, step).indices(whole[axis])))
    return tuple(sizes)


def _filled(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    return known.numbers.get(node.input[0])


def _recurrent(node: OnnxNode, shapes: Shapes, known: KnownValues) -> Shape | None:
    """(steps, directions, batch, hidden), of (steps, batch, inputs)."""
    steps, recurrent = shapes[0], shapes[2]
    if steps is None or recurrent is None:
        return None
    return steps[0], recurrent[0], steps[1], recurrent[2]


RECURRENT = ("LSTM", "GRU", "RNN")
Rule = Callable[[OnnxNode, Shapes, KnownValues], Shape | None]
RULES: dict[str, Rule] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global_pool),
    **dict.fromkeys(RECURRENT, _recurrent),
    **dict.fromkeys(
        ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceProd"), _reduction
    ),
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Concat": _concat,
    "Gather": _gather,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Expand": _expand,
    "Slice": _slice,
    "ConstantOfShape": _filled,
}

BROADCASTING = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Where", "And", "Or", "Equal"),
        *("Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Mod", "PRelu", "Sum", "Mean"),
    )
)
SAME = frozenset(
    (
        *("Relu", "LeakyRelu", "Elu", "Selu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh"),
        *("Softmax", "LogSoftmax", "Softplus", "Gelu", "Erf", "Exp", "Log", "Sqrt", "Neg"),
        *("Abs", "Not", "Floor", "Ceil", "Round", "Sin", "Cos", "Reciprocal", "Clip", "Cast"),
        *("Identity", "Dropout", "BatchNormalization", "LayerNormalization"),
        *("InstanceNormalization", "GroupNormalization", "SkipLayerNormalization"),
        *("RMSNormalization", "LRN", "CumSum", "Trilu", "Mish", "Celu", "Softsign", "Swish"),
    )
)
"""Make the shape of their first input."""
