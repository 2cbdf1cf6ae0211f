#!/usr/bin/env python3
"""Write docs/rooms.md: what each folder is for and what it may import.

Run with the project's environment: `.venv/bin/python scripts/write_rooms.py`. What a folder is
for comes from the docstring of its `__init__.py`, what may import what from the layers in
pyproject.toml.
"""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "rooms.md"
PACKAGES = ("autosync", "dynamic", "simulator", "search", "api")

DATA = {
    "benchmarks": "Scripts that print figures. Import every room and `tests`.",
    "datasets": "Data only, no Python. Installed as `autosync/datasets`.",
    "datasets/clusters": "Cluster files: the presets.",
    "datasets/measurements": "Published measurements of real GPU clusters.",
    "datasets/models": "Graphs of the bundled models, compressed.",
    "datasets/runtimes": "Strategies measured here, with a datasheet.",
    "datasets/simulators": "The trained simulator that comes with AutoSync, with its card.",
    "docs": "Pages, pictures and evaluations.",
    "examples": "Complete training scripts. Import `autosync` as a user does.",
    "migrations": "The database's schema, step by step (Alembic). Installed as "
    "`autosync/migrations`; imports no room.",
    "packaging": "A container file and a compose file for the service, its workers and PostgreSQL.",
    "scripts": "What writes datasets, pages and pictures, and what CI runs. Import every room.",
    "tests": "Mirrors the folders above; `tests/packaging` builds and installs them.",
}
"""The folders that are no package of the project, and what they are for."""

HEAD = """# Rooms

What each folder is for and what it may import. `scripts/write_rooms.py` writes this page from the
docstrings of the folders and from the layers in `pyproject.toml`, which `make check` holds.

`dynamic/`, `simulator/`, `search/` and `api/` are imported as `autosync.dynamic`,
`autosync.simulator`, `autosync.search` and `autosync.api`: links in `autosync/` lead to them, so
that an installation has one package and hides nobody's modules.
"""


def main() -> None:
    PAGE.write_text(rooms_page())
    print(f"{PAGE}: {len(packages())} rooms")


def rooms_page() -> str:
    """The whole page, as docs/rooms.md must be."""
    sections = [HEAD]
    for package in PACKAGES:
        rows = [folder for folder in packages() if folder.split("/")[0] == package]
        table = _table({folder: purpose(folder) for folder in rows})
        sections.append(f"## {package}\n\n{''.join(_orders(package))}{table}")
    return "\n".join((*sections, f"## Beside them\n\n{_table(DATA)}"))


def packages() -> list[str]:
    """Every folder that is a package, by its path in the project."""
    return sorted(
        str(file.parent.relative_to(ROOT))
        for package in PACKAGES
        for file in (ROOT / package).rglob("__init__.py")  # which follows no links
    )


def purpose(folder: str) -> str:
    """The folder's docstring on one line; empty where it has none."""
    tree = ast.parse((ROOT / folder / "__init__.py").read_text())
    return " ".join((ast.get_docstring(tree) or "").split()).replace("|", "\\|")


def _orders(package: str) -> Iterator[str]:
    """A line for each order of layers that concerns rooms of this package."""
    for contract in _layer_contracts():
        for container in contract.get("containers", [""]):
            layers = list(contract["layers"])
            first = f"{container}.{layers[0]}".strip(".")
            if (_home(first) if container != "autosync" else "autosync") != package:
                continue
            where = f"In `{container}` imports" if container else "Imports"
            order = " > ".join(f"`{layer}`" for layer in layers)
            yield f"{where} run to the right: {order}.\n\n"


def _layer_contracts() -> list[dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    return [contract for contract in contracts if contract["type"] == "layers"]


def _home(module: str) -> str:
    """The top-level folder of a module."""
    parts = [*module.split("."), ""]
    return parts[1] if parts[1] in PACKAGES else "autosync"


def _table(purposes: dict[str, str]) -> str:
    rows = "".join(f"| `{folder}/` | {text} |\n" for folder, text in purposes.items())
    return f"| folder | what it is for |\n|---|---|\n{rows}"


if __name__ == "__main__":
    main()
