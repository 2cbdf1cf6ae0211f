"""Where the forward pass waits for new values.

A variable is waited for before the forward of every module that owns it, and of every module
that was seen to read it in the recorded first forward pass. One that nobody was seen to read
(or that is read outside any module's forward) is waited for at the start of the model's forward.
"""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from autosync.runtime.execution.nested_tensors import tensors_in
from autosync.runtime.hooks.torch_compile import opaque
from autosync.runtime.layout.records import VariableRecord

Wait = Callable[[list[VariableRecord]], None]


class _Reads(TorchFunctionMode):
    """Notes which parameters are read while which module's forward runs."""

    def __init__(self, known: dict[int, VariableRecord], running: list[nn.Module]):
        super().__init__()
        self.known = known
        self.running = running
        self.readers: dict[int, list[nn.Module]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tensors_in((args, kwargs)):
            if (variable := self.known.get(id(tensor))) is not None and self.running:
                self.readers.setdefault(variable.index, []).append(self.running[-1])
        return func(*args, **(kwargs or {}))


class Gates:
    """Forward pre-hooks of the modules, and the recording of the first forward pass."""

    def __init__(self, model: nn.Module, variables: list[VariableRecord], wait: Wait):
        self.model = model
        self.wait = wait
        self.recorded = False
        self._known = {id(v.parameter): v for v in variables}
        self._gated: dict[nn.Module, list[VariableRecord]] = {}
        self._handles: dict[nn.Module, RemovableHandle] = {}
        self._running: list[nn.Module] = []
        self._reads: _Reads | None = None
        self._watch: list[RemovableHandle] = []

    def gate_owners(self) -> None:
        """Every module waits for the variables that it owns."""
        for module in self.model.modules():
            for parameter in module.parameters(recurse=False):
                if (variable := self._known.get(id(parameter))) is not None:
                    self._gate(module, variable)

    def _gate(self, module: nn.Module, variable: VariableRecord) -> None:
        gated = self._gated.setdefault(module, [])
        if variable.deferred and variable not in gated:
            gated.append(variable)
        if gated and module not in self._handles:
            self._handles[module] = module.register_forward_pre_hook(_gate_hook(self.wait, gated))

    def start_recording(self) -> None:
        """At the start of the model's own forward."""
        self._reads = _Reads(self._known, self._running)
        for module in self.model.modules():
            if module is self.model:  # is running: its hooks cannot change while they are called
                continue
            self._watch.append(module.register_forward_pre_hook(_enter_hook(self._running)))
            self._watch.append(
                module.register_forward_hook(_leave_hook(self._running), always_call=True)
            )
        self._running.append(self.model)
        self._reads.__enter__()  # type: ignore[no-untyped-call]

    def stop_recording(self) -> None:
        """At the end of the model's own forward, even when it failed."""
        if self._reads is None:
            return
        self._reads.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for variable in self._known.values():
            readers = self._reads.readers.get(variable.index, [])
            for module in readers or [self.model]:
                self._gate(module, variable)
        self._end_watch()
        self.recorded = True

    def _end_watch(self) -> None:
        for handle in self._watch:
            handle.remove()
        self._watch.clear()
        self._running.clear()
        self._reads = None

    def close(self) -> None:
        self._end_watch()
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        self._gated.clear()


def _gate_hook(wait: Wait, gated: list[VariableRecord]) -> Callable[[nn.Module, Any], None]:
    def hook(module: nn.Module, args: Any) -> None:
        wait(gated)

    return opaque(hook)


def _enter_hook(running: list[nn.Module]) -> Callable[[nn.Module, Any], None]:
    def hook(module: nn.Module, args: Any) -> None:
        running.append(module)

    return opaque(hook)


def _leave_hook(running: list[nn.Module]) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if running and running[-1] is module:
            running.pop()

    return opaque(hook)
