"""The token: who looks at it, and waits that end with it."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from autosync.cancellation import (
    CancellationToken,
    Cancelled,
    cancelled_by,
    check_cancelled,
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
