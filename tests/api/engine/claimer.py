"""Claims all that waits: python -m tests.api.engine.claimer URL NAME FILE. It goes on from its
first claim when the file is there."""

import sys
import time
from pathlib import Path

from autosync.api.db import connect
from autosync.api.engine import job_queue


def main() -> None:
    url, name, file = sys.argv[1:]
    database = connect(url)
    while held := job_queue.claim(database, name):
        print(held.job_id, held.fence, flush=True)
        while not Path(file).exists():
            time.sleep(0.01)
    database.close()


if __name__ == "__main__":
    main()
