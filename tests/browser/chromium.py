"""Debian's Chromium, headless, driven by its own protocol over a loopback socket."""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

PROGRAM = shutil.which("chromium")

_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-default-apps", "--hide-scrollbars", "--remote-debugging-port=0"),
)


class Tab:
    """One page: what it said and asked for, and what can be done to it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.requests: list[str] = []
        self.complaints: list[str] = []

    async def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and wait for its answer, noting events on the way."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            message = await asyncio.wait_for(self._socket.receive_json(), 60)
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        given = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(given["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(given["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if given["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(given["args"]))
            case "Log.entryAdded" if given["entry"]["level"] in ("error", "warning"):
                self.complaints.append(given["entry"]["text"])

    async def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + 60
        while not await self.run(script):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {script}; the page said {self.complaints}")
            await asyncio.sleep(0.1)

    async def open(self, page: Path, *, width: int, height: int, dark: bool = False) -> None:
        """Open a file in a window of this size."""
        for part in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{part}.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        await self.dark(dark)
        await self.call("Page.navigate", url=page.as_uri())
        await self.until("document.readyState === 'complete'")

    async def dark(self, wanted: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if wanted else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def press(self, key: str) -> None:
        """A key goes down and up."""
        text = {"text": " "} if key == " " else {}
        number = {" ": 32, "Tab": 9, "ArrowLeft": 37}[key]
        known: dict[str, Any] = {"key": key, "code": "Space" if key == " " else key}
        known["windowsVirtualKeyCode"] = number
        await self.call("Input.dispatchKeyEvent", type="keyDown", **known, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **known)

    async def move(self, x: float, y: float) -> None:
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Keep a picture of the page."""
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def _started(folder: Path) -> Iterator[int]:
    """Chromium with a profile of its own; gives the port it listens on."""
    process = subprocess.Popen(
        [str(PROGRAM), *_OPTIONS, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        told = folder / "DevToolsActivePort"
        deadline = time.monotonic() + 60
        while not (told.exists() and told.read_text().strip()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"chromium did not start (code {process.poll()})")
            time.sleep(0.05)
        yield int(told.read_text().split()[0])
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def browse(folder: Path, visit: Callable[[Tab], Awaitable[None]]) -> None:
    """Start a browser, hand a tab to `visit`, and end the browser."""

    async def run(port: int) -> None:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                address = (await answer.json())[0]["webSocketDebuggerUrl"]
            async with session.ws_connect(address, max_msg_size=0) as socket:
                await visit(Tab(socket))

    with _started(folder) as port:
        asyncio.run(run(port))
