"""Writes packaging/requirements.lock: versions and hashes of what the image installs beside torch.

    python -m venv /tmp/lock && /tmp/lock/bin/pip install uv
    /tmp/lock/bin/python scripts/lock_image.py

Run it when bounds in pyproject.toml change, and before a release. torch and the libraries of its
builds for CUDA are left out: TORCH_OPTIONS of the image chooses the build, and torch names the
versions of its libraries exactly.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONTAINERFILE = ROOT / "packaging" / "Containerfile"
WRITTEN = ROOT / "packaging" / "requirements.lock"
OF_TORCH = re.compile(r"(torch|triton|nvidia-.*|cuda-.*)==")


def resolved(torch: str, python: str) -> str:
    """All that `autosync[service,postgresql]` needs beside this release of torch."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--generate-hashes"),
            *("--no-header", "--no-annotate", "--python-version", python),
            *("--python-platform", "linux", "--extra", "service", "--extra", "postgresql"),
            *("--constraints", "-", "pyproject.toml"),
        ],
        cwd=ROOT,
        input=f"torch=={torch}\n",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def without_torch(lines: str) -> str:
    packages = re.split(r"\n(?=\S)", lines.strip())
    return "".join(f"{package}\n" for package in packages if not OF_TORCH.match(package))


def main() -> None:
    text = CONTAINERFILE.read_text()
    torch, python = re.search(r"torch==(\S+)", text), re.search(r"python:([\d.]+)-", text)
    if torch is None or python is None:
        sys.exit(f"{CONTAINERFILE} names no release of torch, or no image of Python")
    header = (
        "# Written by scripts/lock_image.py: of the image, without torch. Hashes are checked.\n"
    )
    WRITTEN.write_text(header + without_torch(resolved(torch[1], python[1])))


if __name__ == "__main__":
    main()
