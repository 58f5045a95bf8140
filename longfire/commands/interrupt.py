"""A command that is stopped, by Ctrl-C or by a cluster, ends in order: what it found is saved and shown."""

import os
import signal
import threading
from types import TracebackType

INTERRUPTED = 130
"""The exit status of a command that was stopped, as shells have it for Ctrl-C."""


class Sigterm:
    """Within it SIGTERM is as Ctrl-C, in this process; but for the exit status, `status_of`."""

    heard = False

    def __enter__(self) -> "Sigterm":
        self.process = os.getpid()
        self.heeds = threading.current_thread() is threading.main_thread()
        if self.heeds:
            self.before = signal.signal(signal.SIGTERM, self.hear)
        return self

    def hear(self, *_: object) -> None:
        """Once: what is ended already is not ended again. A process that was forked from this one ends at once."""
        if os.getpid() != self.process:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.heard = True
        raise KeyboardInterrupt

    def status_of(self, status: int) -> int:
        """A command's exit status: another than Ctrl-C's if SIGTERM stopped it."""
        return 128 + signal.SIGTERM if self.heard and status == INTERRUPTED else status

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.heeds:
            signal.signal(signal.SIGTERM, self.before)
