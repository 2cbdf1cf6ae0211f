"""The service as a program: python -m tests.api.http.service_process URL HOST PORT ROOT_PATH TOKEN
[LIMIT=NUMBER ...]"""

import sys

from autosync.api.engine.service_limits import limits_from
from autosync.api.http.access.access_rules import access_on
from autosync.api.http.app import serve
from autosync.api.http.listening import listening_sockets


def main() -> None:
    url, host, port, root_path, token, *limits = sys.argv[1:]
    access = access_on(host, token or None)
    sockets = listening_sockets(host, int(port))
    serve(url, sockets, access, limits_from(limits), root_path=root_path)


if __name__ == "__main__":
    main()
