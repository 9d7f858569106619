"""Python functions of a user's, tried in the task that has their rows: for which of these they fail, and why.

Each class stands in for a function of one kind of Spark's, and gives a text for each row for which that fails: a
`Failure` as JSON. The function comes as the bytes by which Spark itself hands it to its workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
from msgspec.structs import replace
from pyspark.core.broadcast import Broadcast
from pyspark.serializers import CPickleSerializer
from pyspark.util import PythonEvalType

from ...state.culprit import Items
from ...state.failing import RECORD, NoItems, failing, one_by_one
from ..source.worker import ERROR_MARK, ErrorMark, configure_worker

RECORDS = f"`{RECORD}` long, why string"
"""What a function of whole batches is replaced by gives."""


@dataclass(frozen=True)
class _Tried:
    command: bytes = field(repr=False)
    most: int
    """How many rows may fail for each call. Where there are more, one more at least is told, and not all."""
    mark: ErrorMark = ERROR_MARK
    """What errors carry that are our own part's, as where a schema registry is away: no row's fault."""

    @cached_property
    def function(self) -> Callable[..., Any]:
        configure_worker()
        return _loaded(self.command)

    def _failing(self, count: int, attempt: Callable[[Items], object]) -> list[str | None]:
        """For each of so many rows why it fails, None where it does not."""

        def checked(rows: Items) -> None:
            try:
                attempt(rows)
            except Exception as error:
                if None in self.mark.told("\n".join(getattr(error, "__notes__", ()))):
                    raise NoItems from error  # our own part fails
                raise

        # Loaded by itself: what fails in that is no row's fault.
        _ = self.function
        why: list[str | None] = [None] * count
        attempts = one_by_one(checked)
        if count and attempts([np.arange(count)])[0] is not None:
            for row, failure in failing(count, attempts, self.most).items():
                why[row] = msgspec.json.encode(replace(failure, stack=self.mark.without(failure.stack))).decode()
        return why


@cache
def _loaded(command: bytes) -> Callable[..., Any]:
    # It was made by this run, of its own program, and has not left it.
    found = CPickleSerializer().loads(command)  # type: ignore[no-untyped-call]
    # One that is large comes to workers as a broadcast variable.
    return (CPickleSerializer().loads(found.value) if isinstance(found, Broadcast) else found)[0]  # type: ignore[no-any-return,no-untyped-call]


class _OfARow(_Tried):
    """Stands in for a function of the values of one row."""

    def __call__(self, *values: Any, **named: Any) -> str | None:
        function = self.function
        try:
            # Nearly all rows pass, and to set out to try groups of them takes longer than many a function.
            function(*values, **named)
        except Exception:
            return self._failing(1, lambda _: function(*values, **named))[0]
        return None


class _OfColumns(_Tried):
    """Stands in for a function of columns, of pandas or of Arrow."""

    def __call__(self, *columns: Any, **named: Any) -> Any:
        every = [*columns, *named.values()]

        def attempt(rows: Items) -> None:
            some = _rows(every, rows)
            made = self.function(*some[: len(columns)], **dict(zip(named, some[len(columns) :], strict=True)))
            _whole(len(made), len(rows))

        return _like(every, self._failing(_length(every), attempt))


class _OfBatches(_Tried):
    """Stands in for a function of an iterator over batches of columns, of pandas or of Arrow."""

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            columns = batch if isinstance(batch, tuple) else (batch,)
            yield _like(columns, self._failing(_length(columns), lambda rows, batch=batch: self._attempt(batch, rows)))  # type: ignore[misc]

    def _attempt(self, batch: Any, rows: Items) -> None:
        some = _rows(batch, rows) if isinstance(batch, tuple) else _rows((batch,), rows)[0]
        _whole(sum(len(each) for each in self.function(iter([some]))), len(rows))


class _OfFrames(_Tried):
    """Stands in for the function of `mapInPandas` and `mapInArrow`, and gives the records for which that fails.

    Its batches have `RECORD` as their last column.
    """

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            if isinstance(batch, pa.RecordBatch):
                plain, numbers = batch.select(batch.schema.names[:-1]), batch.columns[-1].to_numpy()
            else:
                plain, numbers = batch.iloc[:, :-1], batch.iloc[:, -1].to_numpy()
            why = self._failing(len(numbers), lambda rows, plain=plain: self._attempt(plain, rows))  # type: ignore[misc]
            failed = [row for row, each in enumerate(why) if each is not None]
            columns = {RECORD: numbers[failed], "why": _like((plain,), [why[row] for row in failed])}
            yield pa.record_batch(columns) if isinstance(batch, pa.RecordBatch) else pd.DataFrame(columns)

    def _attempt(self, plain: Any, rows: Items) -> None:
        for _ in self.function(iter(_rows((plain,), rows))):
            pass


_BY_KIND = {
    "BATCHED": _OfARow,
    "ARROW_BATCHED": _OfARow,
    "SCALAR_PANDAS": _OfColumns,
    "SCALAR_ARROW": _OfColumns,
    "SCALAR_PANDAS_ITER": _OfBatches,
    "SCALAR_ARROW_ITER": _OfBatches,
    "MAP_PANDAS_ITER": _OfFrames,
    "MAP_ARROW_ITER": _OfFrames,
}
STANDS_IN: Mapping[int, type[_Tried]] = {
    number: tries
    for kind, tries in _BY_KIND.items()
    # Spark 4.0 has no scalar functions of Arrow.
    if (number := getattr(PythonEvalType, f"SQL_{kind}_UDF", None)) is not None
}
"""By Spark's kinds of functions, what tries one."""


def _length(columns: Sequence[Any]) -> int:
    return len(columns[0]) if columns else 0


def _rows(columns: Sequence[Any], rows: Items) -> tuple[Any, ...]:
    """Some rows of columns of pandas or of Arrow, or of frames."""
    return tuple(
        each.iloc[rows].reset_index(drop=True)
        if isinstance(each, pd.Series | pd.DataFrame)
        else each.take(pa.array(rows))
        for each in columns
    )


def _like(columns: Sequence[Any], why: list[str | None]) -> Any:
    """Texts as a column of the library that the others are of."""
    if columns and not isinstance(columns[0], pd.Series | pd.DataFrame):
        return pa.array(why, pa.string())
    return pd.Series(why, dtype=object)


def _whole(returned: int, count: int) -> None:
    """Raises `ValueError` where a function gives another number of rows than it got."""
    if returned != count:
        raise ValueError(f"the function gave {returned} rows for {count}")
