"""Builds and installs the project from a copy of its tree, without the network."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

LINKED = tuple(sorted(path.name for path in (ROOT / "autosync").iterdir() if path.is_symlink()))
"""The folders beside autosync/ that are links in it."""

INSTRUCTIONS = [
    line.split(maxsplit=1)
    for line in (ROOT / "packaging/Containerfile").read_text().replace("\\\n", " ").splitlines()
    if line.strip() and not line.startswith("#")
]
"""Of the image: keyword and the rest of each."""

UNTRACKED = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc", "*.db", "*.db-*")


def copy_tree(folder: Path) -> Path:
    """What the image's first stage copies from the project's root; links stay links."""
    folder.mkdir()
    stages = [number for number, (keyword, _) in enumerate(INSTRUCTIONS) if keyword == "FROM"]
    for keyword, rest in INSTRUCTIONS[: stages[1]]:
        if keyword != "COPY":
            continue
        *sources, into = rest.split()
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, folder / into, symlinks=True, ignore=UNTRACKED)
            else:
                (folder / source).parent.mkdir(exist_ok=True)
                shutil.copy(ROOT / source, folder / source)
    return folder


def packaged_files(tree: Path) -> set[str]:
    """The files below autosync/ with those behind its links, as paths in a wheel."""
    here = {path.relative_to(tree) for path in (tree / "autosync").rglob("*") if path.is_file()}
    beside = {
        Path("autosync") / path.relative_to(tree)
        for name in LINKED
        for path in (tree / name).rglob("*")
        if path.is_file()
    }
    return {path.as_posix() for path in here | beside}


def build(tree: Path, kind: str, out: Path) -> Path:
    """The `sdist`, `wheel` or `editable` that setuptools makes of the tree."""
    out.mkdir(exist_ok=True)
    code = f"import setuptools.build_meta as b; print(b.build_{kind}({str(out)!r}))"
    return out / _run([sys.executable, "-c", code], tree).splitlines()[-1]


def install(wheel: Path, target: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    alone = ("--no-deps", "--no-index", "--no-compile")
    _run([*pip, *alone, "--target", str(target), str(wheel)], target.parent)
    return target


def run_installed(target: Path, code: str, folder: Path) -> str:
    """What the code prints, run in the folder as `python -c` with what is installed in `target`.

    The dependencies are this environment's packages, without its .pth files: an editable install
    of the project is not seen.
    """
    begin = (
        f"import site, sys; site.addsitedir({str(target)!r}); "
        f"sys.path.append({sysconfig.get_path('purelib')!r})\n"
    )
    return _run([sys.executable, "-S", "-c", begin + code], folder)


def run_command(target: Path, words: list[str], folder: Path) -> str:
    """What `autosync` of `target` prints; processes that it starts use that one, too."""
    command = [sys.executable, "-m", "autosync", *words]
    return _run(command, folder, PYTHONPATH=str(target))


def _run(command: list[str], folder: Path, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment | variables,
        text=True,
        capture_output=True,
        timeout=280,
        check=False,
    )
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout
