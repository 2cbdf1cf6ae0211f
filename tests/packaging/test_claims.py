"""Figures on pages name a command that exists and a machine; and what lacks them is found."""

import pytest

from scripts.check_claims import MACHINE, missing_commands, pages, problems, sections, unfounded

MEASURED = "On two CPU cores an iteration takes 12.5 ms (`python -m benchmarks.swapping`).\n"


def test_every_figure_of_the_pages_is_founded() -> None:
    assert problems(pages()) == []


def test_the_pages_hold_figures_to_check() -> None:
    texts = pages()
    assert {"README.md", "docs/results.md", "benchmarks/contest/README.md"} <= texts.keys()
    without_machine = MACHINE.sub("", texts["docs/results.md"])
    assert list(unfounded("docs/results.md", without_machine))


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        (MEASURED, None),
        ("An iteration takes 12.5 ms.", "the command that prints them and the machine"),
        (MEASURED.replace("On two CPU cores an", "An"), "the machine"),
        ("On two CPU cores it is 1.3 times as fast as DDP.", "the command that prints them"),
        ("On two CPU cores it is 1.3 times as fast (`autosync tune`).", None),
        ("On two CPU cores it is 1.3 times as fast (`autosync serve`).", "the command that prints"),
        ("On one H100 an iteration takes 12.5 ms (`autosync tune`).", None),
        ("Nothing is measured here; there are 25 variables.", None),
    ],
)
def test_a_figure_needs_a_command_and_a_machine(text: str, lacks: str | None) -> None:
    found = list(unfounded("page.md", f"# Title\n\n{text}\n"))
    assert bool(found) == (lacks is not None)
    assert lacks is None or lacks in found[0]


def test_what_stands_around_a_section_counts_for_it_and_what_stands_beside_it_does_not() -> None:
    page = f"# Title\n\n{MEASURED}\n## Inner\n\n13 ms.\n\n### Innermost\n\n14 ms.\n"
    assert list(unfounded("page.md", page)) == []
    beside = f"# Title\n\n## First\n\n{MEASURED}\n## Second\n\n13 ms.\n"
    assert [line.split(": ")[1] for line in unfounded("page.md", beside)] == ["Second"]


def test_comments_of_python_are_no_headings() -> None:
    page = "# Title\n\n```python\n# a comment\n```\n\n## Second\n"
    assert [section.heading for section in sections(page)] == ["", "Title", "Second"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("`python -m benchmarks.swapping`", None),
        ("`python -m benchmarks.gone_away`", "benchmarks.gone_away: no such module"),
        ("`python -m benchmarks.contest.tables --pack`", None),
        ("`python -m benchmarks.contest.tables --unpack`", "no option --unpack"),
        ("`python -m benchmarks.contest.tables --pack\n--unpack`", "no option --unpack"),
        ("`scripts/check`", None),
        ("`scripts/gone_away`", "scripts/gone_away: no such file"),
        ("`tests/packaging/test_gone_away.py`", "test_gone_away.py: no such file"),
        ("`make quickstart`", None),
        ("`make coffee`", "make coffee: no such target"),
        ("`autosync simulator train FOLDER`", None),
        ("`autosync simulator tame FOLDER`", "autosync simulator tame: no such command"),
        ("    autosync guess resnet50 example-4x1", "autosync guess: no such command"),
        ("torchrun --nproc-per-node 2 -m autosync diagnose train.py:example", None),
    ],
)
def test_a_command_that_is_gone_is_named(text: str, told: str | None) -> None:
    found = list(missing_commands("page.md", text))
    assert bool(found) == (told is not None)
    assert told is None or told in found[0]
