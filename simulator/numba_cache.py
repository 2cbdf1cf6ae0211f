"""Functions compiled by numba once a machine, and again when anything they are made of changes.

numba's own cache watches the file of the decorated function alone: an edit of a function or a
constant that it imports leaves the old machine code in place. Here the name of the cached code
holds a stamp over the sources of all functions that the kernel reaches and over the constants that
they read, so that code of other sources is never found.

The machine code lies in NUMBA_CACHE_DIR, or else beside the sources, or else, where that folder
cannot be written to, in the user's own cache folder.
"""

import dis
import hashlib
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, update_wrapper
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, Generic, ParamSpec, TypeVar, overload

import numpy as np
from numba import njit
from numba.core.event import Event, Listener, install_listener
from numba.extending import register_jitable
from numba.np import linalg

P = ParamSpec("P")
R = TypeVar("R")

PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, np.dtype)
"""Constants whose text is their value."""
NAMED = (type, types.ModuleType, types.BuiltinFunctionType, np.ufunc)
"""What a kernel may read besides, known by its name; its file is among the sources."""
GIVEN = ("numba", "numpy")
"""Packages whose functions are no sources: they change with their versions."""

KERNEL = "_autosync_kernel"
"""Under which a function that is compiled bears the kernel's name."""

LINEAR_ALGEBRA = "ensure_blas"
"""By which numba sees that SciPy's is there."""
ARRAY_FUNCTIONS = "numba.np.arraymath"

_loading = Lock()


class Kernel(Generic[P, R]):
    """A function as machine code, without the interpreter lock.

    The first call compiles it, or loads what an earlier process compiled. Plain functions that it
    calls are compiled with it; those under `njit` should have no cache of their own.

    function: the plain one. allocates: whether it makes arrays; what does not runs without
        reference counts, which is several times faster.
    """

    def __init__(self, function: Callable[P, R], allocates: bool = True):
        self.function = function
        self._allocates = allocates
        self._compiled: Callable[P, R] | None = None
        self._lock = Lock()
        update_wrapper(self, function, updated=())

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        if self._compiled is None:
            with self._lock:
                self._compiled = self._compiled or self._compile()
        return self._compiled(*arguments, **named)

    def _compile(self) -> Callable[P, R]:
        _load_array_functions()
        function = _python_function(self.function)
        assert function is not None
        for reached in _reached(function):
            _make_callable_in_kernels(reached)
        stamped = types.FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        stamped.__qualname__ = f"{function.__qualname__}_{stamp_of(function)}"
        stamped.__dict__[KERNEL] = function.__name__
        compiled: Callable[P, R]
        try:
            compiled = njit(nogil=True, cache=True, _nrt=self._allocates)(stamped)
        except RuntimeError as error:  # numba can write to none of the folders that it knows
            _warn_of_no_folder(function, error)
            compiled = njit(nogil=True, _nrt=self._allocates)(stamped)
        return compiled


def _load_array_functions() -> None:
    """What numba knows of arrays, without SciPy: numba loads all of its linear algebra only to see
    that it is there, which takes longer than everything else that loads a kernel. A function that
    computes with it still has numba load it then. A numba that looks for it elsewhere just loads
    it."""
    with _loading:
        ensured = getattr(linalg, LINEAR_ALGEBRA, None)
        if ensured is None or ARRAY_FUNCTIONS in sys.modules:
            return
        setattr(linalg, LINEAR_ALGEBRA, lambda: None)
        try:
            arrays = import_module(ARRAY_FUNCTIONS)
        finally:
            setattr(linalg, LINEAR_ALGEBRA, ensured)
        if hasattr(arrays, LINEAR_ALGEBRA):
            setattr(arrays, LINEAR_ALGEBRA, ensured)


def _warn_of_no_folder(function: types.FunctionType, error: RuntimeError) -> None:
    folder = Path(function.__code__.co_filename).parent / "__pycache__"
    warnings.warn(
        f"compiled kernels cannot be kept, so every process compiles them again: {error}. Set "
        f"NUMBA_CACHE_DIR to a folder that can be written to, as {str(folder)!r} and the user's "
        "cache folder cannot.",
        stacklevel=4,
    )


class _CompilationListener(Listener):  # type: ignore[misc]  # numba has no types
    def __init__(self, tell: Callable[[str], None]):
        self._tell = tell

    def on_start(self, event: Event) -> None:
        name = event.data["dispatcher"].py_func.__dict__.get(KERNEL)
        if name is not None:  # or a part of a kernel
            self._tell(name)

    def on_end(self, event: Event) -> None:
        """Nothing to say."""


@contextmanager
def compilations_told(tell: Callable[[str], None]) -> Iterator[None]:
    """Calls `tell` with the name of each kernel that is compiled inside, before it is; not of one
    that is loaded."""
    with install_listener("numba:compile", _CompilationListener(tell)):
        yield


@overload
def cached_kernel(function: Callable[P, R]) -> Kernel[P, R]: ...
@overload
def cached_kernel(*, allocates: bool) -> Callable[[Callable[P, R]], Kernel[P, R]]: ...
def cached_kernel(function: Any = None, *, allocates: bool = True) -> Any:
    """Makes a function a `Kernel`: `@cached_kernel` or `@cached_kernel(allocates=False)`."""
    if function is None:
        return partial(Kernel, allocates=allocates)
    return Kernel(function, allocates)


def stamp_of(function: types.FunctionType) -> str:
    """A digest of the files of all functions that a kernel reaches, and of the constants they read.

    Raises:
        TypeError: a function reads something of which one cannot tell whether it has changed.
    """
    found, paths = hashlib.sha256(), set[str]()
    for each in _reached(function):
        paths.add(each.__code__.co_filename)
        for name, value in _read_names(each):
            if _python_function(value) is not None:
                continue
            if isinstance(value, type | types.ModuleType) and not _given(value):
                paths.add(getattr(sys.modules[_module(value)], "__file__", ""))
            found.update(f"{each.__qualname__} {name} {_text(each, name, value)}\n".encode())
    for path in sorted(paths - {""}):  # what is built into Python has none
        found.update(Path(path).read_bytes())
    return found.hexdigest()[:16]


def _reached(function: types.FunctionType) -> Iterator[types.FunctionType]:
    """The function, and every one that it calls, directly or not; each once."""
    waiting, seen = [function], {function}
    while waiting:
        current = waiting.pop()
        yield current
        for _, value in _read_names(current):
            called = _python_function(value)
            if called is not None and called not in seen and not _given(called):
                seen.add(called)
                waiting.append(called)


def _read_names(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Names and values of the globals and of the enclosing functions' variables that it reads."""
    for name in _global_names(function.__code__):
        if name in function.__globals__:  # the others are Python's own
            yield name, function.__globals__[name]
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    yield from ((name, cell.cell_contents) for name, cell in cells)


@cache
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """Each once. Kept, since reading bytecode takes long and a kernel is looked through twice."""
    instructions = dis.get_instructions(code)
    names = [each.argval for each in instructions if each.opname == "LOAD_GLOBAL"]
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names += _global_names(inner)
    return tuple(dict.fromkeys(names))


def _python_function(value: Any) -> types.FunctionType | None:
    """The Python function that a value is, or was compiled from."""
    if isinstance(value, Kernel):
        value = value.function
    value = getattr(value, "py_func", value)  # of what `njit` returns
    return value if isinstance(value, types.FunctionType) else None


def _module(value: Any) -> str:
    return value.__name__ if isinstance(value, types.ModuleType) else value.__module__


def _given(value: Any) -> bool:
    return _module(value).partition(".")[0] in GIVEN


def _text(function: types.FunctionType, name: str, value: Any) -> str:
    """Differs whenever the value does."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.descr}{value.shape}{value.tobytes().hex()}"
    if isinstance(value, tuple):
        return "".join(_text(function, name, each) for each in value)
    if isinstance(value, PLAIN + NAMED):
        return repr(value)
    raise TypeError(
        f"{function.__module__}.{function.__name__} reads {name}, a {type(value).__name__}; "
        "a kernel may read functions, classes, numbers, texts, arrays, and tuples of these."
    )


@cache
def _make_callable_in_kernels(function: types.FunctionType) -> None:
    register_jitable(function)
