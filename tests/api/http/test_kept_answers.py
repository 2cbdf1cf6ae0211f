"""What never changes is made once, within bounds."""

from collections import Counter
from collections.abc import Callable

from autosync.api.http.entity_tags import LARGEST_PART, KeptAnswers

SIZE = 100


def test_an_answer_is_made_once_until_others_were_asked_for_later() -> None:
    kept, made = KeptAnswers(LARGEST_PART * SIZE), Counter[str]()

    def made_now(tag: str) -> Callable[[], str]:
        def make() -> str:
            made[tag] += 1
            return tag * SIZE

        return make

    names = "abcdefgh"
    assert len(names) == LARGEST_PART
    for name in names * 2:
        assert kept.body(name, made_now(name)) == name.encode() * SIZE
    assert set(made.values()) == {1}
    assert kept.body("a", made_now("a")) == b"a" * SIZE
    kept.body("i", made_now("i"))
    kept.body("a", made_now("a"))
    kept.body("b", made_now("b"))
    assert (made["a"], made["b"]) == (1, 2), "b was asked for longest ago"
    assert kept.size_bytes == LARGEST_PART * SIZE


def test_a_large_answer_drives_out_none() -> None:
    kept, made = KeptAnswers(LARGEST_PART * SIZE), Counter[str]()

    def make() -> str:
        made["large"] += 1
        return "x" * (SIZE + 1)

    kept.body("small", lambda: "x" * SIZE)
    for _ in range(2):
        assert len(kept.body("large", make)) == SIZE + 1
    assert made["large"] == 2
    assert kept.size_bytes == SIZE
