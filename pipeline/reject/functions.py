"""Trials of users' Python functions in Spark tasks, to find the rows for which a function fails.

Each class replaces one kind of Spark's Python functions, and returns a `Failure` as JSON for each failing row. The
user's function is in Spark's serialized form.
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

from ...state.failing import RECORD, Items, UnrelatedFailure, find_failures, try_one_by_one
from ..source.worker import ERROR_TAG, ErrorTag, configure_worker

FAILURE_COLUMNS = f"`{RECORD}` long, why string"


@dataclass(frozen=True)
class _Trial:
    command: bytes = field(repr=False)
    max_failures: int
    """Number of failing rows to find per call. If more rows fail, the result has at least one more row."""
    error_tag: ErrorTag = ERROR_TAG

    @cached_property
    def function(self) -> Callable[..., Any]:
        configure_worker()
        return _load_function(self.command)

    def _find_failures(self, count: int, attempt: Callable[[Items], object]) -> list[str | None]:
        def checked(rows: Items) -> None:
            try:
                attempt(rows)
            except Exception as error:
                if None in self.error_tag.tagged_causes("\n".join(getattr(error, "__notes__", ()))):
                    raise UnrelatedFailure from error  # slackwater's own code failed
                raise

        # Load the function outside of the trial, since a failure to load it is caused by no row.
        _ = self.function
        errors: list[str | None] = [None] * count
        attempts = try_one_by_one(checked)
        if count and attempts([np.arange(count)])[0] is not None:
            for row, failure in find_failures(count, attempts, self.max_failures).items():
                errors[row] = msgspec.json.encode(
                    replace(failure, stack=self.error_tag.remove_tags(failure.stack))
                ).decode()
        return errors


@cache
def _load_function(command: bytes) -> Callable[..., Any]:
    # Safe to unpickle: this run's own driver serialized the command.
    deserialized = CPickleSerializer().loads(command)  # type: ignore[no-untyped-call]
    # Spark ships large commands as broadcast variables.
    return (CPickleSerializer().loads(deserialized.value) if isinstance(deserialized, Broadcast) else deserialized)[0]  # type: ignore[no-any-return,no-untyped-call]


class _RowTrial(_Trial):
    """Trial of a Python function that takes the values of one row."""

    def __call__(self, *values: Any, **keywords: Any) -> str | None:
        function = self.function
        try:
            # Nearly all rows pass, and preparing a trial of groups takes longer than running most functions.
            function(*values, **keywords)
        except Exception:
            return self._find_failures(1, lambda _: function(*values, **keywords))[0]
        return None


class _ColumnTrial(_Trial):
    """Trial of a pandas or Arrow function that takes columns."""

    def __call__(self, *columns: Any, **keywords: Any) -> Any:
        inputs = [*columns, *keywords.values()]

        def attempt(rows: Items) -> None:
            sample = _take_rows(inputs, rows)
            result = self.function(*sample[: len(columns)], **dict(zip(keywords, sample[len(columns) :], strict=True)))
            _check_length(len(result), len(rows))

        return _text_column(inputs, self._find_failures(_length(inputs), attempt))


class _BatchTrial(_Trial):
    """Trial of a pandas or Arrow function that takes an iterator over batches of columns."""

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            columns = batch if isinstance(batch, tuple) else (batch,)
            errors = self._find_failures(_length(columns), lambda rows, batch=batch: self._attempt(batch, rows))  # type: ignore[misc]
            yield _text_column(columns, errors)

    def _attempt(self, batch: Any, rows: Items) -> None:
        sample = _take_rows(batch, rows) if isinstance(batch, tuple) else _take_rows((batch,), rows)[0]
        _check_length(sum(len(result) for result in self.function(iter([sample]))), len(rows))


class _FrameTrial(_Trial):
    """Trial of a function of `mapInPandas` or `mapInArrow`. Returns the records for which the function fails.

    The last column of each batch is `RECORD`.
    """

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            if isinstance(batch, pa.RecordBatch):
                plain, numbers = batch.select(batch.schema.names[:-1]), batch.columns[-1].to_numpy()
            else:
                plain, numbers = batch.iloc[:, :-1], batch.iloc[:, -1].to_numpy()
            errors = self._find_failures(len(numbers), lambda rows, plain=plain: self._attempt(plain, rows))  # type: ignore[misc]
            failed = [row for row, error in enumerate(errors) if error is not None]
            columns = {RECORD: numbers[failed], "why": _text_column((plain,), [errors[row] for row in failed])}
            yield pa.record_batch(columns) if isinstance(batch, pa.RecordBatch) else pd.DataFrame(columns)

    def _attempt(self, plain: Any, rows: Items) -> None:
        for _ in self.function(iter(_take_rows((plain,), rows))):
            pass


_BY_KIND = {
    "BATCHED": _RowTrial,
    "ARROW_BATCHED": _RowTrial,
    "SCALAR_PANDAS": _ColumnTrial,
    "SCALAR_ARROW": _ColumnTrial,
    "SCALAR_PANDAS_ITER": _BatchTrial,
    "SCALAR_ARROW_ITER": _BatchTrial,
    "MAP_PANDAS_ITER": _FrameTrial,
    "MAP_ARROW_ITER": _FrameTrial,
}
TRIAL_BY_EVAL_TYPE: Mapping[int, type[_Trial]] = {
    number: tries
    for kind, tries in _BY_KIND.items()
    # Spark 4.0 has no scalar functions of Arrow.
    if (number := getattr(PythonEvalType, f"SQL_{kind}_UDF", None)) is not None
}


def _length(columns: Sequence[Any]) -> int:
    return len(columns[0]) if columns else 0


def _take_rows(columns: Sequence[Any], rows: Items) -> tuple[Any, ...]:
    return tuple(
        column.iloc[rows].reset_index(drop=True)
        if isinstance(column, pd.Series | pd.DataFrame)
        else column.take(pa.array(rows))
        for column in columns
    )


def _text_column(columns: Sequence[Any], texts: list[str | None]) -> Any:
    if columns and not isinstance(columns[0], pd.Series | pd.DataFrame):
        return pa.array(texts, pa.string())
    return pd.Series(texts, dtype=object)


def _check_length(returned: int, count: int) -> None:
    if returned != count:
        raise ValueError(f"the function returned {returned} rows for {count}")
