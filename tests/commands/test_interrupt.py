"""Ctrl-C and SIGTERM."""

import os
import signal
import threading

import pytest

from longfire import cli
from longfire.commands.interrupt import INTERRUPTED, Sigterm


@pytest.mark.parametrize(("stop", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command(stop, status, monkeypatch):
    """Whether or not it handles the interrupt itself; signal handlers are restored."""

    def run(quiet):
        try:
            os.kill(os.getpid(), stop)
        except KeyboardInterrupt:
            if quiet:
                raise
            return INTERRUPTED

    before = signal.getsignal(signal.SIGTERM)
    for quiet in (False, True):
        monkeypatch.setattr("longfire.commands.explore.run_explore", lambda _, quiet=quiet: run(quiet))
        assert cli.main(["explore"]) == status
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_is_ignored():
    """Only an interrupt changes the status."""
    with Sigterm() as stop:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert [stop.status_of(status) for status in (INTERRUPTED, 0, 1)] == [143, 0, 1]


def test_forked_processes_terminate_at_once():
    """Pool workers, for example, print no traceback."""
    ready, say = os.pipe()
    with Sigterm():
        child = os.fork()
        if child == 0:  # pragma: no cover, in another process
            try:
                os.write(say, b"!")  # a signal that arrives during the fork is lost
                threading.Event().wait(60)
            finally:
                os._exit(9)
        assert os.read(ready, 1) == b"!"
        os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    os.close(ready)
    os.close(say)


def test_other_threads_leave_signals_alone():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(cli.main(["explore", "--out", os.devnull + "/no"])))
    thread.start()
    thread.join()
    assert seen == [2]
