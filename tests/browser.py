"""A headless Chromium, asked by the protocol of its developer tools."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading

NAMES = ("chromium", "chromium-browser")
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)
WITHOUT = f"no {' or '.join(NAMES)} is installed"
SECONDS = 300  # after which a browser that hangs is ended
# it reads from 3 and writes to 4, and nothing is to run between fork and exec
BEGIN = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page at a time."""

    def __init__(self, process, asks, answers):
        self.process, self.asks, self.answers = process, asks, answers
        self.number, self.session, self.left = 0, {}, b""
        page = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=page, flatten=True)
        self.session = {"sessionId": attached["sessionId"]}

    def ask(self, method, **params):
        """The answer to a command of the protocol; events are left out."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        os.write(self.asks, json.dumps(message | self.session).encode() + b"\0")
        while True:
            answer = self._said()
            if answer.get("id") == self.number:
                return answer["result"]

    def _said(self):
        """The next message, which a zero byte ends."""
        parts = [self.left]
        while b"\0" not in parts[-1]:
            parts.append(self.answers.read1(2**20))
            assert parts[-1], "the browser has ended"
        said, _, self.left = b"".join(parts).partition(b"\0")
        return json.loads(said)

    def value(self, expression):
        """What an expression of JavaScript comes to on the page, a promise awaited."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.ask("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def show(self, path, width=1200, scheme="light"):
        """Loads a file in a window of a width, for people who like light or dark."""
        size = {"width": width, "height": 800, "deviceScaleFactor": 1}
        self.ask("Emulation.setDeviceMetricsOverride", **size, mobile=width < 600)
        likes = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", features=[likes])
        self.ask("Page.navigate", url=path.absolute().as_uri())
        self.value(
            "new Promise(done => document.readyState === 'complete' ? done() : "
            "addEventListener('load', () => done()))"
        )

    def press(self, key, code):
        """A key, pressed and let go."""
        for kind in ("rawKeyDown", "keyUp"):
            named = {"key": key, "code": key, "windowsVirtualKeyCode": code}
            self.ask("Input.dispatchKeyEvent", type=kind, **named)

    def picture(self):
        """What the window shows, as PNG."""
        return base64.b64decode(self.ask("Page.captureScreenshot")["data"])


@contextlib.contextmanager
def browser(profile):
    """A browser that keeps what it writes in a folder."""
    reads, asks = os.pipe()
    answers, writes = os.pipe()
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN, str(reads), str(writes), PROGRAM]
        + [*flags, f"--user-data-dir={profile}"],
        pass_fds=(reads, writes),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(reads)
    os.close(writes)
    watch = threading.Timer(SECONDS, process.kill)
    watch.start()
    try:
        with os.fdopen(answers, "rb") as said:
            yield Browser(process, asks, said)
    finally:
        watch.cancel()
        process.kill()
        process.wait()
        os.close(asks)
