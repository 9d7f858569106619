"""Python functions of a user's, tried in the task that has their rows: for which of these they fail, and why.

Each class stands in for a function of one kind of Spark's, and gives a text for each row for which that fails: a
`Failure` as JSON. The function comes as the bytes by which Spark itself hands it to its workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
from msgspec.structs import replace
from pyspark.core.broadcast import Broadcast
from pyspark.serializers import CPickleSerializer
from pyspark.util import PythonEvalType

from ...fold.culprit import Items
from ...fold.failing import RECORD, Failure, NoItems, failing, one_by_one
from ..source.worker import ERROR_MARK, ErrorMark, configure_worker

RECORDS = f"`{RECORD}` long, why string"
"""What a function of whole batches is replaced by gives."""


def decoded(why: str) -> Failure:
    """What one of these said of a row."""
    return msgspec.json.decode(why, type=Failure)


@dataclass(frozen=True)
class _Tried(ABC):
    command: bytes = field(repr=False)
    most: int
    """How many rows may fail for each call. Where there are more, one more at least is told, and not all."""
    mark: ErrorMark = ERROR_MARK
    """What errors carry that are our own part's, as where a schema registry is away: no row's fault."""

    @property
    def function(self) -> Callable[..., Any]:
        """The user's."""
        return _loaded(self.command)

    def _failing(self, count: int, attempt: Callable[[Items], object]) -> list[str | None]:
        """For each of so many rows why it fails, None where it does not."""
        configure_worker()
        # Loaded by itself: what fails in that is no row's fault.
        _loaded(self.command)
        why: list[str | None] = [None] * count
        attempts = one_by_one(lambda rows: self._checked(attempt, rows))
        if count and attempts([np.arange(count)])[0] is not None:
            for row, failure in failing(count, attempts, self.most).items():
                why[row] = self._told_of(failure)
        return why

    def _checked(self, attempt: Callable[[Items], object], rows: Items) -> None:
        """Raises `NoItems` where our own part fails."""
        try:
            attempt(rows)
        except Exception as error:
            if None in self.mark.told("\n".join(getattr(error, "__notes__", ()))):
                raise NoItems from error
            raise

    def _told_of(self, failure: Failure) -> str:
        return msgspec.json.encode(replace(failure, stack=self.mark.without(failure.stack))).decode()


@cache
def _loaded(command: bytes) -> Callable[..., Any]:
    # It was made by this run, of its own program, and has not left it.
    found = CPickleSerializer().loads(command)  # type: ignore[no-untyped-call]
    # One that is large comes to workers as a broadcast variable.
    return (CPickleSerializer().loads(found.value) if isinstance(found, Broadcast) else found)[0]  # type: ignore[no-any-return,no-untyped-call]


class OfARow(_Tried):
    """Stands in for a function of the values of one row."""

    def __call__(self, *values: Any, **named: Any) -> str | None:
        """Why it fails, None where it does not."""
        return self._failing(1, lambda _: self.function(*values, **named))[0]


class OfColumns(_Tried):
    """Stands in for a function of columns, of pandas or of Arrow."""

    def __call__(self, *columns: Any, **named: Any) -> Any:
        """For each row why it fails."""
        why = self._failing(
            _length([*columns, *named.values()]),
            lambda rows: _whole(len(self.function(*_rows(columns, rows), **_named(named, rows))), len(rows)),
        )
        return _like([*columns, *named.values()], why)


class OfBatches(_Tried):
    """Stands in for a function of an iterator over batches of columns, of pandas or of Arrow."""

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """For each row of each batch why it fails."""
        for batch in batches:
            columns = batch if isinstance(batch, tuple) else (batch,)
            yield _like(columns, self._failing(_length(columns), lambda rows, batch=batch: self._attempt(batch, rows)))  # type: ignore[misc]

    def _attempt(self, batch: Any, rows: Items) -> None:
        some = _rows(batch, rows) if isinstance(batch, tuple) else _rows((batch,), rows)[0]
        _whole(sum(len(each) for each in self.function(iter([some]))), len(rows))


class OfFrames(_Tried):
    """Stands in for the function of `mapInPandas` and `mapInArrow`. Its batches have `RECORD` as their last column."""

    @abstractmethod
    def _apart(self, batch: Any) -> tuple[Any, np.ndarray]:
        """A batch as the function gets it, and the numbers."""

    @abstractmethod
    def _told(self, numbers: np.ndarray, why: Sequence[str]) -> Any:
        """Numbers of records, and why each fails, as a batch."""

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The records for which it fails, and why."""
        for batch in batches:
            plain, numbers = self._apart(batch)
            why = self._failing(len(numbers), lambda rows, plain=plain: self._attempt(plain, rows))  # type: ignore[misc]
            failed = [row for row, each in enumerate(why) if each is not None]
            yield self._told(numbers[failed], [str(why[row]) for row in failed])

    def _attempt(self, plain: Any, rows: Items) -> None:
        for _ in self.function(iter([_rows((plain,), rows)[0]])):
            pass


class OfPandasFrames(OfFrames):
    """That of `mapInPandas`."""

    def _apart(self, batch: Any) -> tuple[Any, np.ndarray]:
        return batch.iloc[:, :-1], batch.iloc[:, -1].to_numpy()

    def _told(self, numbers: np.ndarray, why: Sequence[str]) -> Any:
        return pd.DataFrame({RECORD: numbers, "why": pd.Series(why, dtype=object)})


class OfRecordBatches(OfFrames):
    """That of `mapInArrow`."""

    def _apart(self, batch: Any) -> tuple[Any, np.ndarray]:
        return batch.select(batch.schema.names[:-1]), batch.column(batch.num_columns - 1).to_numpy()

    def _told(self, numbers: np.ndarray, why: Sequence[str]) -> Any:
        return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64()), pa.array(why, pa.string())], [RECORD, "why"])


STANDS_IN: Mapping[int, type[_Tried]] = {
    PythonEvalType.SQL_BATCHED_UDF: OfARow,
    PythonEvalType.SQL_ARROW_BATCHED_UDF: OfARow,
    PythonEvalType.SQL_SCALAR_PANDAS_UDF: OfColumns,
    PythonEvalType.SQL_SCALAR_ARROW_UDF: OfColumns,
    PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF: OfBatches,
    PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF: OfBatches,
    PythonEvalType.SQL_MAP_PANDAS_ITER_UDF: OfPandasFrames,
    PythonEvalType.SQL_MAP_ARROW_ITER_UDF: OfRecordBatches,
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


def _named(columns: Mapping[str, Any], rows: Items) -> dict[str, Any]:
    return dict(zip(columns, _rows(list(columns.values()), rows), strict=True))


def _like(columns: Sequence[Any], why: list[str | None]) -> Any:
    """Texts as a column of the library that the others are of."""
    if columns and not isinstance(columns[0], pd.Series | pd.DataFrame):
        return pa.array(why, pa.string())
    return pd.Series(why, dtype=object)


def _whole(given: int, count: int) -> None:
    """Raises `ValueError` where a function gives another number of rows than it got."""
    if given != count:
        raise ValueError(f"the function gave {given} rows for {count}")
