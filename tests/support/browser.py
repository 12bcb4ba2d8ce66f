"""A headless Chromium for tests, controlled by the DevTools protocol through a pair of pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Timeout for an answer of the browser in seconds. A start takes one or two, on a busy machine many more.
PATIENCE = 90


class Browser:
    """One page in a new browser without a network.

    Attributes:
        events: all events that the browser has sent.
    """

    def __init__(self, profile: Path):
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if program is None:
            pytest.skip(f"there is no browser (looked for {', '.join(NAMES)})")
        there, self._commands = os.pipe()
        self._answers, here = os.pipe()
        # The browser reads commands from descriptor 3 and answers on 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{there} 4>&{here}', "bash", program, "--headless",
             "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
             "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND",
             f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            pass_fds=(there, here), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(there), os.close(here)
        self._buffer, self._number, self._session, self.events = b"", 0, None, []
        page = next(one for one in self._ask("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self._session = self._ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def open(self, file: Path) -> None:
        """Load a page from the disk."""
        self._ask("Page.navigate", url=file.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message())

    def run(self, script: str):
        """Evaluate an expression in the page."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, script: str) -> None:
        """Click on the centre of the element that an expression returns."""
        box = self.run(
            f"(() => {{ const e = {script}; e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return {x: b.x + b.width / 2, y: b.y + b.height / 2} })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._ask("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **box)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window in pixels."""
        size = dict(width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._ask("Emulation.setDeviceMetricsOverride", **size)

    def screenshot(self, file: Path) -> None:
        """Write a PNG of the window."""
        file.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def requests(self) -> list[str]:
        """The requested addresses."""
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def complaints(self) -> list[dict]:
        """Return errors and messages of scripts and of the page."""
        methods = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [event for event in self.events if event["method"] in methods]

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._commands), os.close(self._answers)

    def _ask(self, method: str, **parameters) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | (
            {"sessionId": self._session} if self._session else {}
        )
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _message(self) -> dict:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(end - time.monotonic(), 0))
            assert ready, f"the browser did not answer within {PATIENCE} s"
            read = os.read(self._answers, 1 << 20)
            assert read, f"the browser ended with code {self._process.wait()}"
            self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)
