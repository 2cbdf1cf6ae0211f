"""Records one forward and one backward pass, on tensors without memory."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import flop_registry

from autosync.graph import DType
from autosync.importing.operator_rules import FLOPS, SHAPES
from autosync.importing.recording_devices import RecordingDevice
from autosync.importing.tracker import Tracker, storage_of, storages, tensors
from autosync.torch_dtypes import DTYPE_NAMES


@dataclass(slots=True)
class Record:
    """What one operation did.

    shape: of its first output. dtype: of the first floating-point tensor that it reads, or makes
    where it reads none. products: (variable, activation rows) of each matrix product with
    a variable itself or a view of one. lookups: (variable, number of row indices) of an embedding.
    """

    inputs: set[int] = field(default_factory=set)
    variables: set[int] = field(default_factory=set)
    forward_flops: int = 0
    backward_flops: int = 0
    output_bytes: int = 0
    shape: tuple[int, ...] = ()
    dtype: DType = "float32"
    products: list[tuple[int, int]] = field(default_factory=list)
    lookups: list[tuple[int, int]] = field(default_factory=list)


class Recorder(Tracker):
    """FLOPs are counted with torch's registry, composite operators taken apart exactly as
    `torch.utils.flop_counter.FlopCounterMode` does, so totals agree with it but where
    `operator_rules` counts other ones.

    variables: index of each parameter of the module, in order.
    """

    def __init__(self, variables: list[torch.nn.Parameter], device: RecordingDevice) -> None:
        super().__init__()
        self._device = device
        self.records: list[Record] = []
        self.variable_of = {storage_of(value): i for i, value in enumerate(variables)}
        self._writer: dict[int, int] = {}
        # Storages are identified by address; all stay alive so that no address is reused.
        self._alive: list[Any] = []
        self._flops = 0
        self._nested = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if self._nested:
            return self._execute(func, args, kwargs or {})
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _execute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = tree_map(self._adopted, (args, kwargs))
        if func is not torch.ops.prim.device.default:
            outer, self._nested = self._nested, True
            try:
                with self:
                    out = func.decompose(*args, **kwargs)
            finally:
                self._nested = outer
            if out is not NotImplemented:
                return out
        shapes_of = SHAPES.get(func._overloadpacket)
        run = func if shapes_of is None or self._device.has_values else shapes_of
        out = run(*args, **kwargs)
        count = FLOPS.get(func._overloadpacket) or flop_registry.get(func._overloadpacket)
        if count is not None:
            self._flops += int(count(*args, **kwargs, out_val=out))
        return out

    def forward_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._flops = 0
        out = self._execute(func, args, kwargs)
        self._alive.append((args, kwargs, out))
        return out

    def forward_operation(
        self, operation: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        outputs = list(tensors(out))
        record = Record(forward_flops=self._flops)
        for storage in storages((args, kwargs)):
            if storage in self._writer:
                record.inputs.add(self._writer[storage])
        record.variables = self._variables((args, kwargs))
        record.output_bytes = sum(tensor.numel() * tensor.element_size() for tensor in outputs)
        record.shape = tuple(outputs[0].shape) if outputs else ()
        record.dtype = _float_type([*tensors((args, kwargs)), *outputs])
        record.products = self._products(self.types[operation], args)
        if self.types[operation] in ("embedding", "_embedding_bag"):
            table, indices = args[:2]
            record.lookups = [(i, int(indices.numel())) for i in self._variables((table,))]
        self.records.append(record)
        # A variable written in place stays a variable.
        for storage in (storage_of(tensor) for tensor in outputs):
            if storage not in self.variable_of:
                self._writer[storage] = operation

    def _variables(self, values: Any) -> set[int]:
        return {self.variable_of[s] for s in storages(values) if s in self.variable_of}

    def _products(self, kind: str, args: tuple[Any, ...]) -> list[tuple[int, int]]:
        if kind not in ("mm", "addmm"):
            return []
        left, right = args[-2:]
        found = []
        if storage_of(right) in self.variable_of:
            found.append((self.variable_of[storage_of(right)], int(left.shape[0])))
        if storage_of(left) in self.variable_of:
            found.append((self.variable_of[storage_of(left)], int(right.shape[1])))
        return found

    def view_of(self, args: tuple[Any, ...]) -> int | None:
        return next((op for s in storages(args) if (op := self._writer.get(s)) is not None), None)

    def writer_of(self, tensor: torch.Tensor) -> int | None:
        return self._writer.get(storage_of(tensor))

    def backward_call(
        self, operation: int | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._flops = 0
        out = self._execute(func, args, kwargs)
        if operation is not None:
            self.records[operation].backward_flops += self._flops
        return out

    def _adopted(self, value: Any) -> Any:
        return self._device.adopted(value) if isinstance(value, torch.Tensor) else value


def _float_type(values: list[torch.Tensor]) -> DType:
    names = (DTYPE_NAMES.get(value.dtype) for value in values)
    return next((name for name in names if name is not None), "float32")
