"""The environment variables that AutoSync reads, all of them, and the name of this host."""

import os
import socket

HOST_VARIABLE = "AUTOSYNC_HOST"
"""Names this rank's host where the host name does not."""

DATABASE_URL_VARIABLE = "AUTOSYNC_DATABASE_URL"
"""Of the service's database, for migrations."""

TOKEN_VARIABLE = "AUTOSYNC_TOKEN"
"""The bearer token that the service asks for."""

PREFIX_VARIABLE = "AUTOSYNC_PREFIX"
"""How launcher `command` reaches a host. With the next two the operator of a worker says how hosts
are reached; a request only names the launcher."""

PYTHON_VARIABLE = "AUTOSYNC_PYTHON"
"""The interpreter on the hosts of launcher `command`."""

RAY_ADDRESS_VARIABLE = "AUTOSYNC_RAY_ADDRESS"
"""Head of the Ray cluster of launcher `ray`."""


def host_name() -> str:
    """The name of this rank's host, by which ranks of one host know each other."""
    return os.environ.get(HOST_VARIABLE) or socket.gethostname()
