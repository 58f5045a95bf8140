"""Graceful exit on Ctrl-C and SIGTERM, so that commands save and show their results so far."""

import os
import signal
import threading
from types import TracebackType

INTERRUPTED = 130
"""Exit status of an interrupted command, as shells report Ctrl-C."""


class Sigterm:
    """Context manager that turns SIGTERM into KeyboardInterrupt, in this process only."""

    received = False

    def __enter__(self) -> "Sigterm":
        self.process = os.getpid()
        self.installed = threading.current_thread() is threading.main_thread()
        if self.installed:
            self.previous = signal.signal(signal.SIGTERM, self.handle)
        return self

    def handle(self, *_: object) -> None:
        """Interrupt once and ignore further signals; a forked child terminates at once."""
        if os.getpid() != self.process:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.received = True
        raise KeyboardInterrupt

    def status_of(self, status: int) -> int:
        """The exit status to report: 143 instead of 130 if the interruption was a SIGTERM."""
        return 128 + signal.SIGTERM if self.received and status == INTERRUPTED else status

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.installed:
            signal.signal(signal.SIGTERM, self.previous)
