"""docs/rooms.md says of every folder what it is for, and says it as the folder itself does."""

import subprocess
from pathlib import Path

import pytest

from scripts.write_rooms import DATA, PACKAGES, PAGE, ROOT, packages, purpose, rooms_page


def test_every_room_says_what_it_is_for() -> None:
    assert [folder for folder in packages() if not purpose(folder)] == []
    assert {folder.split("/")[0] for folder in packages()} == set(PACKAGES)


def test_the_page_is_up_to_date() -> None:
    assert rooms_page() == PAGE.read_text(), "run scripts/write_rooms.py"


def test_the_page_lists_the_folders_that_exist() -> None:
    listed = {*DATA, *PACKAGES}
    assert {folder for folder in listed if not (ROOT / folder).is_dir()} == set()
    held = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if held.returncode:
        pytest.skip("not a clone, so which folders are the project's is not known")
    files = [Path(name) for name in held.stdout.split("\0") if "/" in name]
    folders = {file.parts[0] for file in files if file.parts[0][0] != "."}
    folders |= {"/".join(f.parts[:2]) for f in files if f.parts[0] == "datasets" and f.parts[2:]}
    assert folders == listed
