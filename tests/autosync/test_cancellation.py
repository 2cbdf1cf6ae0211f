"""The token: who looks at it, and waits that end with it."""

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from autosync.cancellation import (
    CancellationToken,
    Cancelled,
    beside,
    cancelled_by,
    check_cancelled,
    in_order,
    result_of,
    submit,
    wait_readable,
)

LONG = 3600.0


def test_only_the_block_of_a_token_looks_at_it() -> None:
    outer, inner = CancellationToken(), CancellationToken()
    with cancelled_by(outer):
        inner.cancel("inner")
        with pytest.raises(Cancelled, match="inner"), cancelled_by(inner):
            check_cancelled()
        check_cancelled()
        outer.cancel("first")
        outer.cancel("second")
        with pytest.raises(Cancelled, match="first"):
            check_cancelled()
    check_cancelled()


def test_no_handler_of_failures_goes_on_after_it() -> None:
    assert not issubclass(Cancelled, Exception)


def test_another_thread_looks_at_the_token_of_who_gave_it_the_work() -> None:
    token = CancellationToken()
    token.cancel("now")
    with ThreadPoolExecutor(1) as threads:
        with cancelled_by(token):
            looking, blind = submit(threads, check_cancelled), threads.submit(check_cancelled)
        with pytest.raises(Cancelled):
            looking.result()
        assert blind.result() is None


def test_waits_end_with_the_token() -> None:
    token, release = CancellationToken(), threading.Event()
    silent, writer = os.pipe()
    with ThreadPoolExecutor(1) as threads, cancelled_by(token):
        waited_for = threads.submit(release.wait, LONG)
        threading.Timer(0.1, token.cancel, ("enough",)).start()
        with pytest.raises(Cancelled):
            wait_readable(silent, LONG)
        with pytest.raises(Cancelled):
            result_of(waited_for)
        release.set()
    os.close(writer)
    assert wait_readable(silent, LONG)  # the end
    os.close(silent)


def test_work_that_looks_at_no_token_is_left_alone() -> None:
    token, release = CancellationToken(), threading.Event()
    threading.Timer(0.1, token.cancel, ("enough",)).start()
    with pytest.raises(Cancelled), cancelled_by(token):
        beside(release.wait, LONG)
    release.set()
    assert beside(threading.current_thread) is threading.current_thread()
    with cancelled_by(CancellationToken()):
        assert beside(int, "12", base=3) == 5
        with pytest.raises(ZeroDivisionError):
            beside(divmod, 1, 0)


def test_items_come_in_their_order_until_the_token_is_cancelled() -> None:
    token = CancellationToken()
    with cancelled_by(token):
        assert list(in_order(2, abs, range(-9, 0))) == list(range(9, 0, -1))
        squares = in_order(2, lambda x: x * x, itertools.count())
        assert [next(squares) for _ in range(3)] == [0, 1, 4]
        token.cancel("enough")
        with pytest.raises(Cancelled):
            next(squares)
