"""A stopped clock for users' code: in this process during a call, and in Spark's Python workers.

Python's `time` and `datetime` return the stopped time; so do names that users' modules have imported from them. Elapsed
time (`time.monotonic`) goes on, and so do libraries that ask the machine directly, such as pandas and numpy.
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
"""Environment variable that tells a daemon of Spark's Python workers to stop their clocks at a time."""
_DATE = datetime.date
_DATETIME = datetime.datetime


class _InPlace(type):
    """Metaclass of a class that replaces another: instances of the replaced class count as its instances."""

    stands_for: type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.stands_for)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.stands_for)


@contextmanager
def stopped(at_ms: int) -> Iterator[None]:
    """Stop Python's clocks at a time (ms since 1970 UTC) during the block, for all threads."""
    undo = _stop(at_ms)
    try:
        yield
    finally:
        for module, name, value in reversed(undo):
            setattr(module, name, value)


def stop_for_good(at_ms: int) -> None:
    """Stop Python's clocks at a time (ms since 1970 UTC) for the rest of this process."""
    _stop(at_ms)


def _stop(at_ms: int) -> list[tuple[ModuleType, str, Any]]:
    """Stop the clocks; return the replaced attributes, to restore them."""
    replaced: list[tuple[ModuleType, str, Any]] = []
    stand_ins = _stand_ins(at_ms)
    instead = {id(getattr(module, name)): value for module, name, value in stand_ins}
    imported = [
        (module, name, instead[id(value)])
        for module in list(sys.modules.values())
        if is_of_user(module)
        for name, value in list(vars(module).items())
        if id(value) in instead
    ]
    for module, name, value in (*stand_ins, *imported):
        replaced.append((module, name, getattr(module, name)))
        setattr(module, name, value)
    return replaced


def _stand_ins(at_ms: int) -> list[tuple[ModuleType, str, Any]]:
    """Return the stand-ins for the attributes of Python's modules."""
    at_s = at_ms / 1000

    class Date(_DATE, metaclass=_InPlace):
        __slots__ = ()  # libraries check that its size equals the real class's
        stands_for = _DATE

        def __new__(cls, *arguments: Any, **named: Any) -> Any:
            return _DATE(*arguments, **named)

        @classmethod
        def today(cls) -> Any:
            return _DATE.fromtimestamp(at_s)

    class Datetime(_DATETIME, metaclass=_InPlace):
        __slots__ = ()
        stands_for = _DATETIME

        def __new__(cls, *arguments: Any, **named: Any) -> Any:
            return _DATETIME(*arguments, **named)

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
        """Return a stand-in for a function of `time` that takes a time, or None for now."""
        return lambda at=None: real(at_s if at is None else at)

    local, strftime, asctime = time.localtime, time.strftime, time.asctime
    functions: dict[str, Any] = {
        "time": lambda: at_s,
        "time_ns": lambda: at_ms * 1_000_000,
        "strftime": lambda format_text, at=None: strftime(format_text, local(at_s) if at is None else at),
        "asctime": lambda at=None: asctime(local(at_s) if at is None else at),
        **{name: of_now(getattr(time, name)) for name in ("localtime", "gmtime", "ctime")},
    }
    stand_ins: list[tuple[ModuleType, str, Any]] = [
        (datetime, "date", Date),
        (datetime, "datetime", Datetime),
        *((time, name, function) for name, function in functions.items()),
    ]
    for module, name, value in stand_ins:
        # Pickled functions refer to the stand-ins by these names, and get the worker's own attributes.
        value.__module__, value.__name__, value.__qualname__ = module.__name__, name, name
    return stand_ins
