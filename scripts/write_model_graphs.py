#!/usr/bin/env python3
"""Import the bundled models anew and write their graphs to datasets/models/.

Run with the project's environment: `.venv/bin/python -m scripts.write_model_graphs [NAME ...]`.
`--check` writes nothing, and fails where a stored graph is not what an import gives.
"""

import gzip
import sys
from pathlib import Path

from autosync.documents import to_json
from autosync.models import BUNDLED, ModelSpec, spec_of
from benchmarks.models import import_bundled

FOLDER = Path(__file__).resolve().parent.parent / "datasets" / "models"


def graph_text(spec: ModelSpec) -> bytes:
    """What the compressed file holds."""
    return (to_json(import_bundled(spec.name)) + "\n").encode()


def main(arguments: list[str]) -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    names = [name for name in arguments if name != "--check"]
    differing = []
    for spec in map(spec_of, names or list(BUNDLED)):
        text = graph_text(spec)
        path = FOLDER / f"{spec.name}.json.gz"
        if "--check" not in arguments:
            path.write_bytes(gzip.compress(text, mtime=0))
        elif not path.is_file() or gzip.decompress(path.read_bytes()) != text:
            differing.append(spec.name)
        stored = f"{path.stat().st_size:,} compressed" if path.is_file() else "not stored"
        print(f"{spec.name}: {len(text):,} bytes, {stored}", flush=True)
    if differing:
        print(f"not what an import gives: {', '.join(differing)}")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
