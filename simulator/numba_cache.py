"""Functions that numba compiles once a machine, and again when a source of a kernel changes.

numba's own cache watches the file of the decorated function alone: an edit of a function or a
constant that it imports leaves the old machine code in place. So the name of the cached code ends
in a hash of `SOURCES`, every file that kernels are made of, and of numba's version.

The machine code lies in NUMBA_CACHE_DIR, or else beside the sources, or else, where that folder
cannot be written to, in the user's own cache folder.
"""

import hashlib
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, update_wrapper
from pathlib import Path
from threading import Lock
from typing import Any, Generic, ParamSpec, TypeVar, overload

import numba
from numba import njit
from numba.core.event import Event, Listener, install_listener

P = ParamSpec("P")
R = TypeVar("R")

PACKAGE = Path(__file__).parents[1]
"""autosync: installed, simulator/ is a folder of it; in a clone, a link in it."""
SOURCES = (
    "codes.py",
    "plan",
    "simulator/analytic.py",
    "simulator/timeline",
    "search/edits",
    "search/sampler",
)
"""Files of `PACKAGE`, and folders with all their files: kernels, and the constants they read."""

KERNEL = "_autosync_kernel"
"""Under which a function that is compiled bears the kernel's name."""


class Kernel(Generic[P, R]):
    """A function as machine code, without the interpreter lock.

    The first call compiles it, or loads what an earlier process compiled. Functions that it calls
    are under `njit` without a cache of their own, or registered with numba.

    function: the plain one, in one of `SOURCES`. allocates: whether it makes arrays; what does not
        runs without reference counts, which is several times faster.
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
        function = getattr(self.function, "py_func", self.function)  # of one under `njit`
        assert isinstance(function, types.FunctionType)
        stamped = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__
        )
        stamped.__qualname__ = f"{function.__qualname__}_{sources_hash()}"
        stamped.__dict__[KERNEL] = function.__name__
        compiled: Callable[P, R]
        try:
            compiled = njit(nogil=True, cache=True, _nrt=self._allocates)(stamped)
        except RuntimeError as error:  # numba can write to none of the folders that it knows
            _warn_of_no_folder(function, error)
            compiled = njit(nogil=True, _nrt=self._allocates)(stamped)
        return compiled


@cache
def sources_hash() -> str:
    """Of `SOURCES` and numba's version, 16 hexadecimal digits. Reads 70 files, in milliseconds."""
    found = hashlib.sha256(numba.__version__.encode())
    for source in (PACKAGE / each for each in SOURCES):
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


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
