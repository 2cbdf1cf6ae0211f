"""Answers that never change, kept in the process."""

from collections.abc import Callable, Hashable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


def remembered(
    answers: dict[Key, Answer], key: Key, make: Callable[[], Answer], most: int = 1000
) -> Answer:
    """The answer under `key`, made if it is not there; of `most` the oldest goes.

    Two threads may make one answer twice, which changes nothing.
    """
    known = answers.get(key)
    if known is None:
        known = make()
        while len(answers) >= most:
            answers.pop(next(iter(answers)), None)
        answers[key] = known
    return known
