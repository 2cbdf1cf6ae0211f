"""Messages as the protobuf library reads and writes them."""

from functools import partial
from typing import Any

from autosync.interop.protobuf_messages import MESSAGES, new_message, parse_message

P = {name: partial(new_message, name) for name in MESSAGES}
"""Makes each message, by its name."""


def parsed(name: str, data: bytes) -> Any:
    return parse_message(name, data, "test", len(data))
