"""What `make` leaves behind when a step fails."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.packaging.test_documentation import ROOT

WITHOUT_ENSUREPIP = """#!/bin/sh
mkdir -p .venv/bin
touch .venv/bin/python
exit 1
"""
"""As Debian's Python without its package python3-venv: it leaves an interpreter without pip."""


def test_an_environment_that_could_not_be_made_is_not_taken_for_one(tmp_path: Path) -> None:
    """Else the next `make`, after python3-venv was installed, finds no pip in it."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    python = tmp_path / "python"
    python.write_text(WITHOUT_ENSUREPIP)
    python.chmod(0o755)
    of_make = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")
    done = subprocess.run(
        ["make", f"PYTHON={python}", ".venv/bin/python"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name not in of_make},
        capture_output=True,
        text=True,
    )
    assert done.returncode, done.stdout
    assert not (tmp_path / ".venv").exists()
