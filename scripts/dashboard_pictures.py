"""Photograph a tuning's page on the dashboard in a real browser: its head, and below it why. For
the tutorial: the head of its tuning, and the page that `autosync diagnose -o page.html` wrote.

.venv/bin/python scripts/dashboard_pictures.py autosync.db TUNING docs/pictures
.venv/bin/python scripts/dashboard_pictures.py autosync.db TUNING docs/pictures --tutorial page.html
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Page, sync_playwright

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
HEAD = ("light", {"width": 1160, "height": 1060}, "body")
DASHBOARD = (
    ("dashboard.png", *HEAD),
    ("dashboard_why.png", "dark", {"width": 1160, "height": 1900}, "#why"),
)
TUTORIAL = (("tutorial_tuning.png", *HEAD),)
"""File, colours, pixels, and where the picture begins."""
SERVER = (
    "import sys; from autosync.api.http.access.access_rules import Access; "
    "from autosync.api.http.app import serve; "
    "from autosync.api.http.listening import listening_sockets; "
    "serve(sys.argv[1], listening_sockets('127.0.0.1', int(sys.argv[2])), Access())"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", type=Path, help="an SQLite file; it is copied, not changed")
    parser.add_argument("tuning", help="its id")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tutorial", type=Path, metavar="PAGE", help="of its diagnosis")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        copied = Path(folder) / "copied.db"
        shutil.copy(given.database, copied)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with served(f"sqlite:///{copied}") as address:
            for name, scheme, size, part in TUTORIAL if given.tutorial else DASHBOARD:
                picture = given.folder / name
                page = browser.new_page(color_scheme=scheme, viewport=size)  # type: ignore[arg-type]
                page.goto(f"{address}/tunings/{given.tuning}")
                photograph(page, part, picture)
                print(f"{picture}: {picture.stat().st_size / 1e3:.0f} kB")
        if given.tutorial:
            page = browser.new_page(viewport={"width": 1000, "height": 400})
            page.goto(given.tutorial.resolve().as_uri())
            page.screenshot(path=given.folder / "diagnosis.png", full_page=True)
        browser.close()


def photograph(page: Page, part: str, picture: Path) -> None:
    """What fits from the beginning of `part` on, once the charts are drawn."""
    page.wait_for_selector("figure#convergence")
    page.wait_for_selector("figure#memory")
    page.locator(part).evaluate("element => element.scrollIntoView()")
    page.screenshot(path=picture)
    page.close()


@contextmanager
def served(url: str) -> Iterator[str]:
    """The service on a free port, without a worker."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", SERVER, url, str(port)])
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                httpx.get(f"{address}/v1/health", timeout=5)
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
