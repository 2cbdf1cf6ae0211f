#!/usr/bin/env python3
"""Import the bundled models anew and write their graphs to datasets/models/.

Run with the project's environment: `.venv/bin/python scripts/write_model_graphs.py [NAME ...]`.
"""

import sys
from pathlib import Path

from autosync.documents import to_json
from autosync.models import spec_of
from autosync.models.model_specs import BUNDLED, import_bundled

FOLDER = Path(__file__).resolve().parent.parent / "datasets" / "models"


def main(names: list[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names or list(BUNDLED):
        spec = spec_of(name)
        text = to_json(import_bundled(spec, spec.batch_size)) + "\n"
        (FOLDER / f"{spec.name}.json").write_text(text)
        print(f"{spec.name}: {len(text):,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
