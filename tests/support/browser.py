"""A page in headless Chromium, spoken to over a pipe: Chrome DevTools Protocol, messages that end in a NUL."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
#: Seconds until an answer is given up.
PATIENCE = 60


class Browser:
    """One tab. complaints: what its console and its network had to say that is no good; requested: every address."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._number, self._session = read, write, 0, ""
        self._rest = b""
        self.complaints: list[str] = []
        self.requested: list[str] = []
        self._events: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **given: Any) -> dict[str, Any]:
        """The answer to one command. AssertionError where it fails."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": given}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, page: Path | str) -> None:
        """Load a file, or an address of the loopback, into the tab, and wait until it has loaded."""
        self._events.clear()
        self.ask("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while "Page.loadEventFired" not in self._events:
            self._next()

    def evaluate(self, expression: str) -> Any:
        """What JavaScript says of the page, past the page's own policy."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until JavaScript says that it is so. AssertionError where it does not come to that."""
        end = time.monotonic() + PATIENCE
        while not self.evaluate(expression):
            assert time.monotonic() < end, f"{expression}: did not come true"
            time.sleep(0.02)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser says nothing"
            more = os.read(self._read, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        event: dict[str, Any] = json.loads(message)
        method, about = event.get("method", ""), event.get("params", {})
        self._events.append(method)
        if method == "Network.requestWillBeSent":
            self.requested.append(about["request"]["url"])
        if method in ("Runtime.exceptionThrown", "Network.loadingFailed"):
            self.complaints.append(json.dumps(about))
        if method == "Runtime.consoleAPICalled" or (method == "Log.entryAdded" and about["entry"]["level"] != "info"):
            self.complaints.append(json.dumps(about))
        return event


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser with an empty profile in a folder, which knows no host but the loopback. bash:
    other shells know no file above 9."""
    assert CHROMIUM is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    shell = f'exec "$0" "$@" 3<&{to_read} 4>&{from_write}'
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    flags += ["--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    flags += [f"--user-data-dir={folder}", "--remote-debugging-pipe"]
    process = subprocess.Popen(
        ["bash", "-c", shell, CHROMIUM, *flags],
        pass_fds=(to_read, from_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(folder)},
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Browser(from_read, to_write)
    finally:
        process.terminate()
        process.wait(PATIENCE)
        os.close(to_write)
        os.close(from_read)


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all tests of a folder that look at pages."""
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened
