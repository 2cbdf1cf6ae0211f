"""Where the forward pass waits for new values.

A variable is waited for before the forward of the module that owns it, or, where the first forward
pass did not call that one, of the nearest module around it that was called. Whoever else reads a
parameter early waits by the parameter itself (`execution/pending.py`).
"""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from autosync.runtime.hooks.torch_compile import (
    Hook,
    InFront,
    Inlined,
    is_compiled,
    outside,
    within_compiler,
)
from autosync.runtime.layout.records import VariableRecord

Wait = Callable[[list[VariableRecord]], None]


class Gates:
    """Hooks of forward passes: of the model, of modules with buffers, and in front of modules whose
    variables may be on their way. A compiled region waits in front for all that is inside of it.

    called: what the script calls, where `torch.compile(model)` made it of the model. inlined: says
    that regions left hooks out.
    """

    def __init__(
        self,
        model: nn.Module,
        variables: list[VariableRecord],
        wait: Wait,
        called: nn.Module | None = None,
    ):
        self.model = model
        self.wait = wait
        self.recorded = False
        self.inlined = Inlined()
        self._called = model if called is None else called
        self._known = {id(v.parameter): v for v in variables}
        self._gated: dict[nn.Module, list[VariableRecord]] = {}
        self._handles: list[InFront] = []
        self._called_modules: set[nn.Module] = set()
        self._watch: list[RemovableHandle] = []
        self._following: dict[nn.Module, Callable[..., None]] = {}

    def install(self, before: Hook, after: Hook, before_buffers: Hook) -> None:
        """before, after: of a forward pass of the model. before_buffers: of a module that has
        buffers. Once more where a module is compiled meanwhile."""
        self._before, self._after, self._before_buffers = before, after, before_buffers
        for module in self.model.modules():
            if "compile" not in module.__dict__ and callable(module.compile):  # else a script's own
                self._following[module] = self._compile_of(module)
                module.__dict__["compile"] = self._following[module]
        self._install()

    def _compile_of(self, module: nn.Module) -> Callable[..., None]:
        def compile_and_follow(*args: Any, **kwargs: Any) -> None:
            type(module).compile(module, *args, **kwargs)
            self._remove()
            self._install()

        return compile_and_follow

    def _install(self) -> None:
        regions = self._regions()
        whole = self._called is not self.model
        inlined = None if whole else self.inlined  # the model's hook waits for everything
        self.recorded = self.recorded or whole or bool(regions)
        before, after = outside(self._before, inlined), outside(self._after, inlined)
        self._handles.append(InFront(self._called, before, after))
        with_buffers: set[nn.Module] = set()
        for module in self.model.modules():
            place = regions.get(module, module)
            if next(module.buffers(recurse=False), None) is not None:
                with_buffers.add(place)
            for parameter in module.parameters(recurse=False):
                if (variable := self._known.get(id(parameter))) is not None:
                    self._gate(place, variable, inlined)
                    if whole:
                        self._gate(self.model, variable, inlined)
        for module in with_buffers - {self.model}:
            self._handles.append(InFront(module, outside(self._before_buffers, inlined)))
        if self._called_modules:
            self._gate_around()

    def _regions(self) -> dict[nn.Module, nn.Module]:
        """Of each module in a compiled region, the module that the region begins with."""
        found: dict[nn.Module, nn.Module] = {}
        for module in self.model.modules():
            if is_compiled(module):
                for inner in module.modules():
                    found.setdefault(inner, module)
        return found

    def _gate(self, module: nn.Module, variable: VariableRecord, inlined: Inlined | None) -> None:
        if not variable.deferred:
            return
        if module in self._gated:
            if variable not in self._gated[module]:
                self._gated[module].append(variable)
            return
        gated = self._gated[module] = [variable]
        if module is not self.model:  # whose own hook waits
            hook = outside(lambda *_: self.wait(gated), inlined)
            self._handles.append(InFront(module, hook))

    def wait_for_model(self) -> None:
        """In front of the model's forward, for what it reads itself."""
        if gated := self._gated.get(self.model):
            self.wait(gated)

    def start_recording(self) -> None:
        """At the start of the model's own forward, the first that runs eagerly: note which modules
        are called."""
        if self.recorded or within_compiler():
            return
        self.recorded = True
        if self._regions():  # compiled since: a region would be compiled once more for it
            return
        self._called_modules = {self.model}  # is running: its hooks cannot change meanwhile

        def enter(module: nn.Module, args: Any) -> None:
            self._called_modules.add(module)

        for module in self.model.modules():
            if module is not self.model:
                self._watch.append(module.register_forward_pre_hook(enter))

    def stop_recording(self, failed: bool) -> None:
        """At the end of the model's own forward. One that failed has not called every module: the
        next one is recorded."""
        if not self._watch:
            return
        self._end_watch()
        if failed:
            self._called_modules.clear()
            self.recorded = False
        else:
            self._gate_around()

    def _gate_around(self) -> None:
        """Modules that own variables and were not called, as a module reads them that is."""
        for name, module in self.model.named_modules():
            if module in self._gated and module not in self._called_modules:
                around = module
                while around not in self._called_modules:
                    name = name.rpartition(".")[0]
                    around = self.model.get_submodule(name)
                for variable in self._gated[module]:
                    self._gate(around, variable, self.inlined)

    def _end_watch(self) -> None:
        for handle in self._watch:
            handle.remove()
        self._watch.clear()

    def _remove(self) -> None:
        for handle in reversed(self._handles):  # around one compiled module there may be several
            handle.remove()
        self._handles.clear()
        self._gated.clear()

    def close(self) -> None:
        self._end_watch()
        self._remove()
        for module, following in self._following.items():
            if module.__dict__.get("compile") is following:
                del module.__dict__["compile"]
