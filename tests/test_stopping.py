import os
import signal
import threading
from contextlib import ExitStack

import pytest
from slackwater.pipeline.stopping import Stop, Stopped, stop_signals


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
        with stop.at_once():
            ask()
            done.append("went on")
        done.append("went on")
    assert done == ["closed"]


def test_who_was_asked_before_does_not_begin() -> None:
    done: list[str] = []
    with stop_signals() as stop:
        ask()
        with stop.at_once():
            done.append("begun")
    assert not done


def test_after_what_may_be_broken_off_comes_what_may_not() -> None:
    with stop_signals() as stop:
        with stop.at_once():
            pass
        ask()
        assert stop.is_set()


def test_what_fails_after_somebody_asked_is_an_end_and_before_it_is_an_error() -> None:
    with pytest.raises(ValueError, match="before"), stop_signals() as stop, stop.in_order():
        raise ValueError("before")
    done: list[str] = []
    with stop_signals() as stop:
        with stop.in_order():
            ask()
            raise ValueError("after")
        done.append("went on")
    with stop_signals() as stop:
        with stop.in_order():
            ask()
        done.append("went on")
    assert not done


def test_beside_the_main_thread_nobody_sets_it_and_handlers_stay() -> None:
    before = signal.getsignal(signal.SIGINT)
    found: list[Stop] = []

    def elsewhere() -> None:
        with stop_signals() as stop:
            found.append(stop)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert not found[0].is_set()
    assert signal.getsignal(signal.SIGINT) is before
    assert issubclass(Stopped, BaseException)
    assert not issubclass(Stopped, Exception), "nobody who mends errors may take it for one"
