"""Comparison of a key's values with values of fields, by the type of the key's column.

- Text equals the same text. It also equals a number or boolean that is written as this text in the field, or that
  Spark casts to this text: "42" equals 42, but not 42.0.
- A number equals any number of that value, however it is written (42, 42.0, 4.2e1), and its text. As bytes, it also
  equals the four or eight bytes of Kafka's serialisers.
- A time equals its ISO 8601 text, in UTC if no zone is given, and a number of seconds, milliseconds or microseconds
  since 1970. A date equals text that begins with it.
- Bytes equal the same bytes, text in UTF-8, and text in Base64.
- A time window (a struct of `start` and `end`) equals the same window, and holds the times from its start to before its
  end.

Keys of other types, such as other structs, cannot be compared with fields.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...snapshot.query.fields import JsonNumber, is_text

Token = tuple[str, Any]
NULL = -1
_DAY_US = 86_400_000_000
_MAX_SECONDS = 10**19
"""Largest absolute number that is compared with times."""
_DATE = re.compile(r"\s*(\d{4,}-\d{1,2}-\d{1,2})")
WINDOW = "window"
"""SQL function from a time to its windows, and the kind of a key column that has windows."""
FUNCTIONS: Mapping[str, Callable[[str], str]] = {
    "lower": str.lower,
    "upper": str.upper,
    "trim": lambda text: text.strip(" "),
    "ltrim": lambda text: text.lstrip(" "),
    "rtrim": lambda text: text.rstrip(" "),
}
"""SQL functions of text that this module can compute."""


@dataclass(frozen=True)
class KeyColumn:
    """Values of one key column. Each distinct value has a code, an integer."""

    values: pa.Array

    @cached_property
    def kind(self) -> str:
        return _kind(self.values.type)

    @cached_property
    def codes(self) -> dict[Token, int]:
        numbers: dict[Token, int] = {}
        for token in self._tokens:
            if token is not None:
                numbers.setdefault(token, len(numbers))
        return numbers

    @cached_property
    def key_codes(self) -> tuple[int, ...]:
        """Code of each key's value: `NULL` for null, a lower number for a value that cannot be compared."""
        codes = (NULL if token is None else self.codes[token] for token in self._tokens)
        if self.kind:
            return tuple(codes)
        return tuple(NULL - is_there for is_there in np.asarray(self.values.is_valid()).astype(int).tolist())

    @cached_property
    def _tokens(self) -> list[Token | None]:
        return [*_tokens_of(self.values, self.kind)] if self.kind else [None] * len(self.values)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        return tuple(value for kind, value in self.codes if kind == "text")

    def apply_functions(self, functions: Sequence[str]) -> "KeyColumn":
        """Return the column with SQL functions applied to its text. Other columns are returned unchanged."""
        if self.kind != "text" or not functions:
            return self
        converted = [None if text is None else _applied(text, functions) for text in self.values.to_pylist()]
        return KeyColumn(pa.array(converted, self.values.type))

    def codes_of(self, values: pa.Array, functions: Sequence[str] = ()) -> npt.NDArray[np.int64]:
        """Return the code of the key value that equals each field value; -1 for no key. `values` has no nulls."""
        if self.kind == "text" and not functions and is_text(values.type):
            # Compared as bytes: Spark's strings may be invalid UTF-8.
            texts = pa.array([text.encode(errors="surrogateescape") for text in self.texts], pa.binary())
            numbers = np.array([self.codes["text", text] for text in self.texts] or [-1])
            at = pc.index_in(values.cast(pa.binary()), texts)
            return np.where(np.asarray(at.is_valid()), numbers[np.asarray(at.fill_null(0))], -1)
        if pa.types.is_nested(values.type):
            return np.array([self.code_of(value) for value in python_values(values)], np.int64)
        coded = pc.dictionary_encode(values)
        distinct = np.array([self.code_of(value, functions) for value in python_values(coded.dictionary)], np.int64)
        return distinct[np.asarray(coded.indices)] if len(distinct) else np.empty(0, np.int64)

    def code_of(self, value: Any, functions: Sequence[str] = ()) -> int:
        if functions:
            texts = [text for _, text in _candidates(value, "text")]
            return max((self.code_of(_applied(text, functions)) for text in texts), default=-1)
        return next((self.codes[token] for token in _candidates(value, self.kind) if token in self.codes), -1)

    def windows_with(self, value: Any) -> set[int] | None:
        """Return the codes of the key windows that hold a field's time; None if the value cannot be read as a time."""
        times = [*_times(value)]
        windows = ((code, bounds) for (_, bounds), code in self.codes.items())
        codes = {code for code, (start, end) in windows if any(start <= us < end for us in times)}
        return codes if times else None


def _applied(text: str, functions: Sequence[str]) -> str:
    for name in functions:
        text = FUNCTIONS[name](text)
    return text


def _kind(kind: pa.DataType) -> str:
    types = pa.types
    tests: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
        "text": (types.is_string, types.is_large_string),
        "bytes": (types.is_binary, types.is_large_binary, types.is_fixed_size_binary),
        "boolean": (types.is_boolean,),
        "number": (types.is_integer, types.is_decimal),
        "float": (types.is_float64,),
        "float32": (types.is_float32,),
        "date": (types.is_date,),
        "time": (types.is_timestamp,),
        WINDOW: (_is_window,),
    }
    return next((name for name, tests_of_type in tests.items() if any(test(kind) for test in tests_of_type)), "")


def _is_window(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and {(field.name, pa.types.is_timestamp(field.type)) for field in kind.fields} == {
        ("start", True),
        ("end", True),
    }


def _tokens_of(values: pa.Array, kind: str) -> Iterator[Token | None]:
    if kind == "time":
        values = pa.array(_microseconds(values), pa.int64())
    if kind == WINDOW:
        starts, ends = (_microseconds(pc.struct_field(values, name)) for name in ("start", "end"))
        yield from (None if None in bounds else (kind, bounds) for bounds in zip(starts, ends, strict=True))
        return
    if kind == "date":
        values = values.cast(pa.date32()).cast(pa.int32())
    for value in values.to_pylist():
        if value is None:
            yield None
        elif kind == "number":
            yield kind, Decimal(value)
        elif kind in ("float", "float32"):
            yield kind, "nan" if value != value else value + 0.0
        else:
            yield kind, value


def _microseconds(times: pa.Array) -> list[Any]:
    """Return the times as microseconds since 1970; None for null."""
    return [*times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.int64()).to_pylist()]


def python_values(values: pa.Array) -> Iterator[Any]:
    """Yield the values; times as an own type with microseconds, windows as pairs of microseconds."""
    if pa.types.is_timestamp(values.type):
        yield from map(_Time, _microseconds(values))
    elif _is_window(values.type):
        yield from (token[1] if token is not None else None for token in _tokens_of(values, WINDOW))
    elif pa.types.is_date(values.type):
        yield from (_Time(number * _DAY_US) for number in values.cast(pa.date32()).cast(pa.int32()).to_pylist())
    else:
        yield from values.to_pylist()


@dataclass(frozen=True, slots=True)
class _Time:
    us: int


def _candidates(value: Any, kind: str) -> Iterator[Token]:
    match kind:
        case "text":
            yield from ((kind, text) for text in _texts(value))
        case "bytes":
            if isinstance(value, bytes):
                yield kind, value
            elif isinstance(value, str):
                yield kind, value.encode(errors="surrogateescape")
                with suppress(binascii.Error, ValueError):
                    yield kind, base64.b64decode(value, validate=True)
        case "boolean":
            if isinstance(value, bool):
                yield kind, value
            elif (text := _text(value).strip().casefold()) in ("true", "false"):
                yield kind, text == "true"
        case "number" | "float" | "float32":
            yield from ((kind, number) for number in _numbers(value, kind))
        case "window":
            if isinstance(value, tuple):
                yield kind, value
        case "time":
            yield from ((kind, us) for us in _times(value))
        case "date":
            yield from ((kind, us // _DAY_US) for us in _times(value))
            if isinstance(value, str | bytes) and (day := _DATE.match(_text(value))) is not None:
                with suppress(ValueError):
                    yield kind, (date.fromisoformat(day[1]) - date(1970, 1, 1)).days


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    return str(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, JsonNumber):
        yield str(value)
        if not value.lstrip("-").isdigit():
            with suppress(ValueError, OverflowError):
                yield from _float_texts(float(value))
    elif isinstance(value, bool):
        yield str(value).lower()
    elif isinstance(value, float):
        yield from _float_texts(value)
    elif isinstance(value, _Time):
        with suppress(ValueError, OverflowError):
            at = datetime.fromtimestamp(value.us // 1_000_000, UTC).replace(microsecond=value.us % 1_000_000)
            yield at.strftime("%Y-%m-%d")
            yield at.strftime("%Y-%m-%d %H:%M:%S") + (f".{at.microsecond:06}".rstrip("0") if at.microsecond else "")
    else:
        yield _text(value)


def _float_texts(value: float) -> Iterator[str]:
    """Yield the text of a float as Python and as Java (Spark) write it."""
    yield repr(value)
    digits, _, exponent = f"{value:e}".partition("e")
    with suppress(InvalidOperation):
        mantissa = str(Decimal(repr(value)).scaleb(-int(exponent)).normalize()) if exponent else digits
        yield f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent or 0)}"


def _numbers(value: Any, kind: str) -> Iterator[Any]:
    if isinstance(value, bool | _Time):
        return
    if isinstance(value, bytes) and len(value) in (4, 8) and kind == "number":
        yield Decimal(int.from_bytes(value, "big", signed=True))
    try:
        number = Decimal(value) if isinstance(value, int | float | Decimal) else Decimal(_text(value).strip())
    except InvalidOperation:
        return
    if kind == "number":
        if number.is_finite():
            yield number
    elif number.is_nan():
        yield "nan"
    else:
        with suppress(OverflowError):
            converted = float(number)
            yield (float(np.float32(converted)) if kind == "float32" else converted) + 0.0


def _times(value: Any) -> Iterator[int]:
    """Yield all times that a value may stand for, in microseconds since 1970."""
    if isinstance(value, _Time):
        yield value.us
        return
    if isinstance(value, int | float | JsonNumber | Decimal) and not isinstance(value, bool):
        with suppress(InvalidOperation):
            number = Decimal(value)
            if number.is_finite() and abs(number) < _MAX_SECONDS:
                yield from (int(number * scale) for scale in (1_000_000, 1_000, 1))
        return
    text = _text(value).strip()
    with suppress(ValueError, OverflowError):
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        since = at - datetime(1970, 1, 1, tzinfo=UTC)
        yield (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
