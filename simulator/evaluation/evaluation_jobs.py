"""The work of an evaluation, a job a domain: in processes, and kept, so that it goes on where it
was interrupted."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar, cast

from autosync.documents import adapter

Say = Callable[[str], None]
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TableJobs:
    """Where the jobs of one table are done and kept.

    folder: of the results. stamp: of all that they depend on; what was kept under another one is
    done again. processes: each does a job at a time, on one core.
    """

    table: str
    folder: Path
    stamp: str
    processes: int
    say: Say

    def results(
        self, kind: type[R], work: Callable[..., R], jobs: Mapping[str, tuple[Any, ...]]
    ) -> list[R]:
        """`work` done on the arguments of every job, in the jobs' order; what was kept of an
        earlier run is not done again.

        kind: of a result, as JSON validates it. jobs: arguments by a name of their own.
        """
        found = {name: self._kept(name, kind) for name in jobs}
        left = {name: given for name, given in jobs.items() if found[name] is None}
        begun = time.monotonic()
        for name, result in self._done(work, left):
            found[name] = result
            self._keep(name, kind, result)
            done = sum(each is not None for each in found.values())
            seconds = time.monotonic() - begun
            self.say(f"{self.table}: {name}, {done} of {len(jobs)}, after {seconds:.0f} s")
        return [cast(R, found[name]) for name in jobs]

    def forget(self) -> None:
        """Nothing is kept of this table any more: it is whole."""
        for file in self._folder.glob("*.json"):
            file.unlink()
        if self._folder.is_dir():
            self._folder.rmdir()

    def _done(
        self, work: Callable[..., R], jobs: Mapping[str, tuple[Any, ...]]
    ) -> Iterator[tuple[str, R]]:
        """Each when it is done."""
        if self.processes < 2:
            yield from ((name, work(*given)) for name, given in jobs.items())
            return
        with ProcessPoolExecutor(self.processes, mp_context=get_context("spawn")) as pool:
            names = {pool.submit(work, *given): name for name, given in jobs.items()}
            try:
                for future in as_completed(names):
                    yield names[future], future.result()
            finally:
                pool.shutdown(cancel_futures=True)

    @property
    def _folder(self) -> Path:
        return self.folder / "unfinished" / self.table

    def _file(self, name: str) -> Path:
        return self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"

    def _kept(self, name: str, kind: type[R]) -> R | None:
        file = self._file(name)
        if not file.is_file():
            return None
        found = json.loads(file.read_text())
        if found["stamp"] != self.stamp:
            return None
        return cast(R, adapter(kind).validate_python(found["result"]))

    def _keep(self, name: str, kind: type[R], result: R) -> None:
        """Whole or not at all."""
        data = adapter(kind).dump_python(result)
        file = self._file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        written = file.with_suffix(".part")
        written.write_text(json.dumps({"job": name, "stamp": self.stamp, "result": data}))
        written.replace(file)


def source_digest(*folders: Path) -> str:
    """Of all Python files below the folders: figures of other code are not mixed with today's."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
