"""Runs a command and ends it, with all its children, when whoever asked for it is gone.

What lives here: a script of the standard library alone, started as `python -I warden.py COMMAND`.
What does not: what the command is (`launch.py`).

Its standard input is a pipe that the parent holds open and never writes to. The pipe's end, by
`close` or by the parent's death, however sudden, means: stop. The command runs in a session of
its own, so that a signal to the group reaches everything it has started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

GRACE_S = 10.0
"""Seconds between the request to end and the end."""


def main() -> int:
    """Run the command of the arguments; its exit status, or 0 if it was stopped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle.
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    signal.signal(signal.SIGTERM, lambda *_: _signal(child, signal.SIGTERM))
    stopped = threading.Event()

    def watch() -> None:
        while os.read(0, 1):
            pass
        stopped.set()
        _end(child)

    threading.Thread(target=watch, daemon=True).start()
    status = child.wait()
    _signal(child, signal.SIGKILL)  # what it has left behind
    return 0 if stopped.is_set() else status


def _end(child: subprocess.Popen[bytes]) -> None:
    _signal(child, signal.SIGTERM)
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        _signal(child, signal.SIGKILL)


def _signal(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


if __name__ == "__main__":
    sys.exit(main())
