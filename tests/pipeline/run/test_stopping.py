import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from slackwater.cli.reporter import Reporter
from slackwater.cli.terminal import Printer
from slackwater.common import runtime
from slackwater.pipeline.run.stopping import StopEvent, StopRequested, stop_signals


def ask(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_sets_the_event_and_breaks_nothing_off(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_signals() as stop:
        ask(number)
        ask(number)
        assert stop.is_set()
    assert signal.getsignal(number) is before


def test_what_may_be_broken_off_is_and_what_was_opened_before_is_closed() -> None:
    done: list[str] = []
    with ExitStack() as stack:
        stop = stack.enter_context(stop_signals())
        stack.callback(done.append, "closed")
        with stop.interruptible():
            ask()
            done.append("went on")
        done.append("went on")
    assert done == ["closed"]


def test_who_was_asked_before_does_not_begin() -> None:
    done: list[str] = []
    with stop_signals() as stop:
        ask()
        with stop.interruptible():
            done.append("begun")
    assert not done


def test_after_what_may_be_broken_off_comes_what_may_not() -> None:
    with stop_signals() as stop:
        with stop.interruptible():
            pass
        ask()
        assert stop.is_set()


def test_what_fails_after_somebody_asked_is_an_end_and_before_it_is_an_error() -> None:
    with pytest.raises(ValueError, match="before"), stop_signals() as stop, stop.uninterrupted():
        raise ValueError("before")
    done: list[str] = []
    with stop_signals() as stop:
        with stop.uninterrupted():
            ask()
            raise ValueError("after")
        done.append("went on")
    with stop_signals() as stop:
        with stop.uninterrupted():
            ask()
        done.append("went on")
    assert not done


def test_beside_the_main_thread_nobody_sets_it_and_handlers_stay() -> None:
    before = signal.getsignal(signal.SIGINT)
    found: list[StopEvent] = []

    def elsewhere() -> None:
        with stop_signals() as stop:
            found.append(stop)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert not found[0].is_set()
    assert signal.getsignal(signal.SIGINT) is before
    assert issubclass(StopRequested, BaseException)
    assert not issubclass(StopRequested, Exception), "nobody who mends errors may take it for one"


def test_who_asks_hears_at_once_also_while_the_main_thread_is_within_a_library() -> None:
    heard: list[float] = []
    with stop_signals(lambda stop: heard.append(time.monotonic())) as stop:
        threading.Timer(0.05, ask).start()
        # No handler in Python runs before this has ended.
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1_500_000)
        ended = time.monotonic()
        assert stop.wait(10)
    assert heard[0] < ended


def test_who_asks_by_a_signal_of_which_no_byte_came_in_time_hears_all_the_same() -> None:
    """The signal may reach another thread, and the main thread may be done before that one has written."""
    heard: list[bool] = []
    with stop_signals(lambda stop: heard.append(stop.is_set())) as stop, stop.interruptible():
        signal.set_wakeup_fd(-1)
        ask()
    assert heard == [True]


def test_only_a_second_ctrl_c_means_now() -> None:
    said: list[bool] = []
    with stop_signals(lambda stop: said.append(stop.immediate.is_set())) as stop:
        ask()
        assert stop.wait(10)
        ask(signal.SIGTERM)
        assert not stop.immediate.wait(0.2)
        ask()
        assert stop.immediate.wait(10)
        ask()
    assert said == [False, True]


def test_what_fails_just_before_the_signal_is_heard_is_an_end_too() -> None:
    """A kill of all processes may hit Spark's first."""
    with stop_signals() as stop, stop.uninterrupted():
        threading.Timer(0.1, ask).start()
        raise ConnectionError("the JVM is gone")
    assert stop.is_set()


def test_inside_what_may_be_broken_off_something_may_be_that_may_not() -> None:
    done: list[str] = []
    with stop_signals() as stop, stop.interruptible():
        with stop.uninterrupted():
            ask()
            done.append("ended in order")
        done.append("went on")
    assert done == ["ended in order"]


def reports(*steps: Callable[[Reporter], None], live: bool = False) -> Reporter:
    reporter = Reporter(Printer(as_json=False), live=live)
    for step in steps:
        step(reporter)
    return reporter


def after(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = runtime.monotonic() + seconds
    monkeypatch.setattr("slackwater.common.runtime.monotonic", lambda: now)


def test_what_takes_a_second_gets_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = reports(lambda it: it.on_activity("starting Spark"), Reporter.tick)
    assert capsys.readouterr().err == ""
    for seconds in (1.5, 30, 60):
        after(monkeypatch, seconds)
        reporter.tick()
    assert capsys.readouterr().err == "starting Spark …\n"


def test_an_idle_run_says_so_once_a_minute(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = reports(Reporter.on_running, Reporter.tick)
    for seconds, line in (
        (4, "waiting for records; no commit yet\n"),
        (20, ""),
        (45, "waiting for records; no commit yet\n"),
        (10, ""),
    ):
        after(monkeypatch, seconds)
        reporter.tick()
        assert capsys.readouterr().err == line, seconds


def test_an_end_never_takes_long_without_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = reports(
        Reporter.on_running,
        lambda it: it.on_stop_requested(StopEvent()),
        lambda it: it.on_activity("waiting for Spark to end"),
    )
    reporter.tick()
    assert capsys.readouterr().err == "stopping: finishing the current batch\n"
    after(monkeypatch, 2.1)
    reporter.tick()
    reporter.tick()
    assert capsys.readouterr().err == "stopping: waiting for Spark to end, 2 s\n"


def test_on_a_terminal_the_line_is_redrawn_and_goes_before_a_commit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = reports(lambda it: it.on_activity("starting Spark"), Reporter.tick, live=True)
    after(monkeypatch, 3)
    reporter.tick()
    reporter.show({}, "a commit")
    told = capsys.readouterr()
    assert told.err == "\r\x1b[Kstarting Spark … 0 s\r\x1b[Kstarting Spark … 3 s\r\x1b[K"
    assert told.out == "a commit\n"
