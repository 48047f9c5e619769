"""A real browser without a window: Chromium, driven over WebDriver (https://www.w3.org/TR/webdriver2/), which is plain HTTP."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from support import wait_until

#: The browser and its driver are on this machine: no proxy that the environment names is asked.
local = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_FLAGS = (
    "--no-proxy-server",
    "--headless=new",
    "--no-sandbox",  # there is none for root, as whom containers run
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-unsafe-swiftshader",  # WebGL, for points in space, on the processor
    "--hide-scrollbars",
)


class Browser:
    """One page of a browser."""

    def __init__(self, session_url: str) -> None:
        self._session_url = session_url

    def open(self, url: str) -> None:
        """Go to the page, and wait until it is loaded; what its scripts load comes later."""
        self._call("url", {"url": url})

    def run(self, script: str) -> object:
        """What a function with this body returns in the page."""
        return self._call("execute/sync", {"script": script, "args": []})

    def wait_for(self, expression: str, what: str) -> None:
        """Wait until the JavaScript expression is true in the page, which nothing tells us of."""
        wait_until(lambda: bool(self.run(f"return Boolean({expression})")), timeout_s=60.0, what=what)

    def click(self, selector: str, x: float = 0.5, y: float = 0.5) -> None:
        """Click on a place of an element, from 0 to 1 in both directions."""
        self.point(selector, x, y)
        self._act("pointer", [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}])

    def drag(self, selector: str, start: float, end: float) -> None:
        """Drag from one place of an element to another, from 0 to 1 of its width, and let go."""
        self.point(selector, start)
        self._act("pointer", [{"type": "pointerDown", "button": 0}])
        self.point(selector, end)
        self._act("pointer", [{"type": "pointerUp", "button": 0}])

    def point(self, selector: str, x: float = 0.5, y: float = 0.5) -> None:
        """Move the pointer to a place of an element, from 0 to 1 in both directions."""
        box = f"const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        found = self.run(f"{box}; return [b.x, b.y, b.width, b.height]")
        assert isinstance(found, list)
        left, top, width, height = (float(one) for one in found)
        self._act("pointer", [{"type": "pointerMove", "duration": 0, "x": int(left + x * width), "y": int(top + y * height)}])

    def press(self, *keys: str) -> None:
        """Press and release keys, one after the other: characters, or those of https://www.w3.org/TR/webdriver2/#keyboard-actions."""
        self._act("key", [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")])

    def hold(self, key: str) -> None:
        """Press a key and keep it down."""
        self._act("key", [{"type": "keyDown", "value": key}])

    def release(self, key: str) -> None:
        """Let go of a key."""
        self._act("key", [{"type": "keyUp", "value": key}])

    def look(self, *, is_dark: bool) -> None:
        """Have the system's colours dark, or light."""
        wanted = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[wanted])

    def enter_frame(self, number: int = 0) -> None:
        """Go into a frame of the page: what is asked from now on is asked there."""
        self._call("frame", {"id": number})

    def devtools(self, command: str, **parameters: object) -> object:
        """What Chromium answers to a command of its DevTools protocol (https://chromedevtools.github.io/devtools-protocol)."""
        return self._call("goog/cdp/execute", {"cmd": command, "params": parameters})

    def screenshot(self) -> bytes:
        """What the page shows, as PNG."""
        with local.open(f"{self._session_url}/screenshot", timeout=60) as answer:
            return base64.b64decode(json.load(answer)["value"])

    def console(self) -> list[str]:
        """What the page's console has shown since the last call: errors of scripts, of the policy, of the network."""
        entries = self._call("se/log", {"type": "browser"})
        assert isinstance(entries, list)
        return [f"{entry['level']} {entry['message']}" for entry in entries]

    def _act(self, kind: str, actions: list[dict[str, object]]) -> None:
        source: dict[str, object] = {"type": kind, "id": kind, "actions": actions}
        if kind == "pointer":
            source["parameters"] = {"pointerType": "mouse"}
        self._call("actions", {"actions": [source]})

    def _call(self, what: str, body: object) -> object:
        return _post(f"{self._session_url}/{what}", body)


@contextmanager
def browser(width: int = 1280, height: int = 900, *, is_phone: bool = False) -> Iterator[Browser]:
    """Start Chromium with a page of this size, which only a phone has below 500. AssertionError that says what to install."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    assert driver and chromium, "Chromium and its driver are missing: apt-get install -y chromium chromium-driver"
    with tempfile.TemporaryDirectory() as profile:
        process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            assert process.stdout is not None
            port = next(found[1] for line in process.stdout if (found := re.search(r"successfully on port (\d+)", line)))
            flags = [*_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]
            options: dict[str, object] = {"binary": chromium, "args": flags}
            if is_phone:
                options["mobileEmulation"] = {"deviceMetrics": {"width": width, "height": height, "pixelRatio": 1.0}}
            asked = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            wanted = {"capabilities": {"alwaysMatch": asked}}
            answer = _post(f"http://127.0.0.1:{port}/session", wanted)
            assert isinstance(answer, dict)
            session_url = f"http://127.0.0.1:{port}/session/{answer['sessionId']}"
            try:
                yield Browser(session_url)
            finally:
                end = urllib.request.Request(session_url, method="DELETE")
                local.open(end, timeout=60).close()
        finally:
            process.terminate()
            process.communicate(timeout=60)


def _post(url: str, body: object) -> object:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310
    with local.open(request, timeout=120) as answer:
        return json.load(answer)["value"]
