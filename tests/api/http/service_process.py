"""The service as a program: python -m tests.api.http.service_process URL PORT ROOT_PATH TOKEN
[LIMIT=NUMBER ...]"""

import sys

from autosync.api.engine.service_limits import limits_from
from autosync.api.http.access.access_rules import access_on
from autosync.api.http.app import serve
from autosync.api.http.listening import listening_sockets

HOST = "127.0.0.1"


def main() -> None:
    url, port, root_path, token, *limits = sys.argv[1:]
    access = access_on(HOST, token or None)
    sockets = listening_sockets(HOST, int(port))
    serve(url, sockets, access, limits_from(limits), root_path=root_path)


if __name__ == "__main__":
    main()
