"""Folders stay small enough to be read as a list."""

from collections import Counter

from tests.packaging.test_documentation import ROOT, files

MOST_MODULES = 25


def test_no_folder_has_more_modules_than_a_reader_takes_in() -> None:
    counts = Counter(file.parent.relative_to(ROOT).as_posix() for file in files("*.py"))
    assert counts["autosync"] > 10
    large = {name: count for name, count in counts.items() if count > MOST_MODULES}
    assert large == {}, f"of {MOST_MODULES} modules at most; give a subject a folder of its own"
