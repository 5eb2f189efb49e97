"""A page in headless Chromium, by its debugging protocol: what it asks for, what it complains of, how it looks."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from specflow.workflow.orphans import signal_group

START_SECONDS = 60.0
SETTLE_SECONDS = 1.0
"""After loading: the figures are drawn, and late errors come."""


def browser() -> str | None:
    """The program, where there is one."""
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


class Page:
    """One tab. ``requests`` are the URLs it asked for, ``complaints`` errors and warnings of its console."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def open(self, page: Path, *, width: int, height: int = 1000, dark: bool = False) -> None:
        """Load it anew at a width in CSS pixels, in the light or dark scheme, and wait until it is drawn."""
        mobile = width < 600
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=page.absolute().as_uri())
        while self.value("document.readyState") != "complete":
            time.sleep(0.05)
        time.sleep(SETTLE_SECONDS)
        self.value("1")  # brings what was said meanwhile

    def value(self, expression: str) -> Any:
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def picture(self, file: Path) -> None:
        """The whole page as PNG."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(json.dumps(params["entry"]))


@contextmanager
def opened_browser() -> Iterator[Page]:
    """A browser with one empty tab; it ends with the block, and so do its processes."""
    program = browser()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="specflow-browser-", ignore_cleanup_errors=True) as profile:
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "--disable-background-networking"]
        process = subprocess.Popen(
            [program, *options, "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            with connect(_address(Path(profile)), max_size=None, open_timeout=START_SECONDS) as socket:
                yield Page(socket)
        finally:
            import signal

            signal_group(process.pid, signal.SIGKILL)
            process.wait()


def _address(profile: Path) -> str:
    """Of the tab's debugger. The browser writes its port into its profile."""
    import httpx

    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError, IndexError, httpx.TransportError, ConnectionClosed):
            port = (profile / "DevToolsActivePort").read_text().split()[0]
            tabs = httpx.get(f"http://127.0.0.1:{port}/json/list", trust_env=False).json()
            return next(str(tab["webSocketDebuggerUrl"]) for tab in tabs if tab["type"] == "page")
        time.sleep(0.1)
    raise TimeoutError("the browser did not start")
