"""What is found at an address before Ray tries it, which takes two minutes to give up."""

import contextlib
import socket
import threading

import pytest

from autosync.errors import NotSupported
from autosync.trials.launchers import ray_launcher
from autosync.trials.launchers.ray_launcher import refuse_unreachable

SETTINGS_FRAME = b"\0\0\0\4\0\0\0\0\0"


def served(answer: bytes | None) -> str:
    """The address of what answers one connection so; None: it keeps silent."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with listener, connection, contextlib.suppress(ConnectionError):
            if answer is not None:
                connection.sendall(answer)
            while connection.recv(64):
                pass

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_what_speaks_as_ray_does_is_left_to_ray() -> None:
    refuse_unreachable(served(SETTINGS_FRAME))
    refuse_unreachable("ray://" + served(SETTINGS_FRAME))
    refuse_unreachable("auto")


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"short", None])
def test_what_is_no_ray_head_is_refused(
    answer: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_launcher, "CONNECT_SECONDS", 0.2)
    with pytest.raises(
        NotSupported, match=r"'127\.0\.0\.1:\d+' cannot be reached.*ray start --head"
    ):
        refuse_unreachable(served(answer))


def test_a_port_where_nothing_listens_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(NotSupported, match=rf"'127\.0\.0\.1:{port}'.*Connection refused"):
        refuse_unreachable(f"127.0.0.1:{port}")


def test_an_impossible_port_is_refused() -> None:
    with pytest.raises(NotSupported, match=r"127\.0\.0\.1:99999"):
        refuse_unreachable("127.0.0.1:99999")
