"""What a process that answers heavy requests does where its memory ends."""

import subprocess
import sys

WITHOUT_MEMORY = """
import resource, threading
from autosync.api.http.answer_process import let_threads_begin

LIMIT = resource.getpagesize()  # Linux takes 0 for no limit
let_threads_begin()
_, most = resource.getrlimit(resource.RLIMIT_DATA)
resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, most))
ended, limited = [], threading.Event()

def run():
    limited.wait()
    try:
        bytearray(64 << 20)
    except MemoryError:
        ended.append("out of memory")

threads = [threading.Thread(target=run) for _ in range(3)]
for thread in threads:
    thread.start()
limited.set()
for thread in threads:
    thread.join()
print(ended, resource.getrlimit(resource.RLIMIT_DATA) == (LIMIT, most))
"""


def test_a_thread_begins_without_memory_and_meets_the_limit() -> None:
    """Python waits without end for one that has no memory to begin."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MEMORY], capture_output=True, text=True, timeout=600
    )
    assert done.stdout.split("\n")[0] == f"{['out of memory'] * 3} True", done.stderr
