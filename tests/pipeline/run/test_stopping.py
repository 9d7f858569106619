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
def test_a_signal_sets_the_stop_event_and_interrupts_nothing(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_signals() as stop:
        ask(number)
        ask(number)
        assert stop.is_set()
    assert signal.getsignal(number) is before


def test_an_interruptible_block_is_left_and_open_resources_are_closed() -> None:
    done: list[str] = []
    with ExitStack() as stack:
        stop = stack.enter_context(stop_signals())
        stack.callback(done.append, "closed")
        with stop.interruptible():
            ask()
            done.append("went on")
        done.append("went on")
    assert done == ["closed"]


def test_after_a_stop_an_interruptible_block_is_not_entered() -> None:
    done: list[str] = []
    with stop_signals() as stop:
        ask()
        with stop.interruptible():
            done.append("begun")
    assert not done


def test_after_an_interruptible_block_a_stop_only_sets_the_event() -> None:
    with stop_signals() as stop:
        with stop.interruptible():
            pass
        ask()
        assert stop.is_set()


def test_an_error_after_a_stop_is_a_clean_end_and_before_it_an_error() -> None:
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


def test_outside_the_main_thread_no_signal_handlers_are_installed() -> None:
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


def test_the_stop_callback_runs_at_once_even_if_the_main_thread_is_in_native_code() -> None:
    heard: list[float] = []
    with stop_signals(lambda stop: heard.append(time.monotonic())) as stop:
        threading.Timer(0.05, ask).start()
        # No handler in Python runs before this has ended.
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1_500_000)
        ended = time.monotonic()
        assert stop.wait(10)
    assert heard[0] < ended


def test_the_stop_callback_runs_even_if_the_wakeup_byte_is_late() -> None:
    """Another thread may get the signal, and the main thread may be done before that thread writes the byte."""
    heard: list[bool] = []
    with stop_signals(lambda stop: heard.append(stop.is_set())) as stop, stop.interruptible():
        signal.set_wakeup_fd(-1)
        ask()
    assert heard == [True]


def test_only_a_second_ctrl_c_stops_immediately() -> None:
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


def test_an_error_just_before_the_signal_is_a_clean_end_too() -> None:
    """A kill of all processes may reach Spark's process first."""
    with stop_signals() as stop, stop.uninterrupted():
        threading.Timer(0.1, ask).start()
        raise ConnectionError("the JVM is gone")
    assert stop.is_set()


def test_an_uninterrupted_block_inside_an_interruptible_one_finishes() -> None:
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


def test_a_slow_step_is_shown_on_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = reports(lambda it: it.on_activity("starting Spark"), Reporter.tick)
    assert capsys.readouterr().err == ""
    for seconds in (1.5, 30, 60):
        after(monkeypatch, seconds)
        reporter.tick()
    assert capsys.readouterr().err == "starting Spark …\n"


def test_an_idle_run_reports_itself_once_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_slow_stop_prints_what_it_waits_for(
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


def test_on_a_terminal_the_status_line_is_redrawn_and_erased_before_a_commit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = reports(lambda it: it.on_activity("starting Spark"), Reporter.tick, live=True)
    after(monkeypatch, 3)
    reporter.tick()
    reporter.show({}, "a commit")
    told = capsys.readouterr()
    assert told.err == "\r\x1b[Kstarting Spark … 0 s\r\x1b[Kstarting Spark … 3 s\r\x1b[K"
    assert told.out == "a commit\n"
