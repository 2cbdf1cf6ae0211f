"""Outside of its folder an extension is named in a few files only: the core meets it by the
registry."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("autosync", "simulator", "search", "api")
MOST_FILES = 5
"""Files that offer an option of users, or read and write the format of others."""

OF_OTHER_LIBRARIES = re.compile(
    r"placement[ _]?group\w*|device_placement|parameter\.placements", re.IGNORECASE
)
"""Ray's placement groups, Accelerate's option, and what torch's DTensors have."""


@pytest.mark.parametrize("word", ["staleness", "swap", "placement"])
def test_an_extension_is_named_in_few_files_outside_of_its_folder(word: str) -> None:
    named = re.compile(rf"(\b|_){word}", re.IGNORECASE)
    files = [
        file.relative_to(ROOT)
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
        if (ROOT / "autosync/extensions") not in file.parents
        and named.search(OF_OTHER_LIBRARIES.sub("", file.read_text()))
    ]
    assert 0 < len(files) <= MOST_FILES, f"{word} is named in {', '.join(map(str, files))}."
