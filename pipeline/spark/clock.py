"""A clock that stands still, for code of a user's: in this process while it is called, and in Spark's Python workers.

Python's `time` and `datetime` say the time that it stands at; so does what modules of the user's have taken from them
by name. Spans of time (`time.monotonic`) go on, and so does what asks the machine past Python, as pandas and numpy do.
"""

import datetime
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from .user_errors import is_of_user

STOPPED_AT = "SLACKWATER_CLOCK_STOPPED_AT_MS"
"""The variable that tells a daemon of Spark's Python workers at which time their clocks stand."""
_DATE = datetime.date
_DATETIME = datetime.datetime


class _InPlace(type):
    """Of a class that stands in for another, whose values are the other's: each of these is one of its own."""

    stands_for: type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.stands_for)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.stands_for)


@contextmanager
def stopped(at_ms: int) -> Iterator[None]:
    """While this lasts, clocks of Python stand at a time, milliseconds since 1970 UTC, for all threads."""
    undo = _stop(at_ms)
    try:
        yield
    finally:
        for module, name, value in reversed(undo):
            setattr(module, name, value)


def stop_for_good(at_ms: int) -> None:
    """The same for the rest of this process."""
    _stop(at_ms)


def _stop(at_ms: int) -> list[tuple[ModuleType, str, Any]]:
    """Stop the clocks; what stood where, to be put back."""
    before: list[tuple[ModuleType, str, Any]] = []
    standing = _standing(at_ms)
    instead = {id(getattr(module, name)): value for module, name, value in standing}
    taken = [
        (module, name, instead[id(value)])
        for module in list(sys.modules.values())
        if is_of_user(module)
        for name, value in list(vars(module).items())
        if id(value) in instead
    ]
    for module, name, value in (*standing, *taken):
        before.append((module, name, getattr(module, name)))
        setattr(module, name, value)
    return before


def _standing(at_ms: int) -> list[tuple[ModuleType, str, Any]]:
    """What Python's modules have instead."""
    at_s = at_ms / 1000

    class Date(_DATE, metaclass=_InPlace):
        __slots__ = ()  # as large as what it stands for, which libraries look at
        stands_for = _DATE

        def __new__(cls, *given: Any, **named: Any) -> Any:
            return _DATE(*given, **named)

        @classmethod
        def today(cls) -> Any:
            return _DATE.fromtimestamp(at_s)

    class Datetime(_DATETIME, metaclass=_InPlace):
        __slots__ = ()
        stands_for = _DATETIME

        def __new__(cls, *given: Any, **named: Any) -> Any:
            return _DATETIME(*given, **named)

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return _DATETIME.fromtimestamp(at_s, tz)

        @classmethod
        def today(cls) -> Any:
            return _DATETIME.fromtimestamp(at_s)

        @classmethod
        def utcnow(cls) -> Any:
            return _DATETIME.fromtimestamp(at_s, datetime.UTC).replace(tzinfo=None)

    def of_now(real: Callable[..., Any]) -> Callable[..., Any]:
        """A function of `time` that takes a time, or none for now."""
        return lambda at=None: real(at_s if at is None else at)

    local, strftime, asctime = time.localtime, time.strftime, time.asctime
    functions: dict[str, Any] = {
        "time": lambda: at_s,
        "time_ns": lambda: at_ms * 1_000_000,
        "strftime": lambda words, at=None: strftime(words, local(at_s) if at is None else at),
        "asctime": lambda at=None: asctime(local(at_s) if at is None else at),
        **{name: of_now(getattr(time, name)) for name in ("localtime", "gmtime", "ctime")},
    }
    standing: list[tuple[ModuleType, str, Any]] = [
        (datetime, "date", Date),
        (datetime, "datetime", Datetime),
        *((time, name, function) for name, function in functions.items()),
    ]
    for module, name, value in standing:
        # A function that is sent to workers refers to them by these names, and finds there what stands there.
        value.__module__, value.__name__, value.__qualname__ = module.__name__, name, name
    return standing
