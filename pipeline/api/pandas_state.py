"""`pandas_state(...)`: state as a function written for Spark's `applyInPandasWithState`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pyspark.sql import Row
from pyspark.sql.streaming.state import GroupState

from ...common.arguments import checked
from ...errors import Usage
from ...state.kinds.kind import BatchMoment
from ...state.kinds.pandas_state import Called, FunctionCode, PandasState, Timeout
from ...state.kinds.structs import Fields
from .python_rows import AsFrames
from .update import Columns, schema_of

_NO_TIMESTAMP = GroupState.NO_TIMESTAMP


@checked
def pandas_state(
    function: Callable[..., Any],
    output: Columns,
    state: Columns,
    timeout: Timeout = "NoTimeout",
    *,
    order_by: Sequence[str] | str = (),
) -> PandasState:
    """Declare a table kept by an unchanged function written for Spark's `applyInPandasWithState`.

    `df.groupBy("user").applyInPandasWithState(fn, output, state, "append", timeout)` becomes a stage with `key="user"`,
    `state=sw.pandas_state(fn, output, state, timeout)`, whose function returns `df`. The fields of the state are
    columns of the table. Frames that the function returns are sent to the stage's outputs.

    Args:
        function: `function(key, frames, state)`, with Spark's `GroupState`.
        output: Columns of the returned frames, as a DDL string, Spark's type, or an Arrow schema.
        state: Columns of a key's state, in the same forms.
        timeout: As in Spark (`GroupStateTimeout`): `"NoTimeout"`, `"ProcessingTimeTimeout"`, by the wall clock, or
            `"EventTimeTimeout"`, by the stage's watermark. If the call for a timeout changes nothing, the key keeps its
            state and has no timeout.
        order_by: Columns that sort a key's rows; default the order in the topic's partition.

    Raises `Usage` for an unknown timeout.
    """
    if timeout not in get_args(Timeout):
        raise Usage(f"pandas_state: timeout is {timeout!r}; expected one of {', '.join(get_args(Timeout))}")
    order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    code = FunctionCode(
        function, lambda: schema_of(state), lambda: schema_of(output), _Begin(function, timeout), AsFrames(), order
    )
    return PandasState(timeout, code=code)


@dataclass(frozen=True, slots=True)
class _Begin:
    """Creates the calls of the function in a batch."""

    function: Callable[..., Any]
    timeout: Timeout

    def __call__(self, moment: BatchMoment) -> Callable[..., Called]:
        now_ms, watermark_ms = moment.wall_ms or 0, moment.watermark_ms
        if self.timeout == "EventTimeTimeout":
            watermark_ms = moment.until_ms
        elif moment.until_ms is not None:
            now_ms = moment.until_ms

        def call(key: Any, frames: Iterator[Any], value: Fields | None, timed_out: bool) -> Called:
            state = GroupState(
                optionalValue=Row(*value) if value is not None else None,  # type: ignore[arg-type]
                batchProcessingTimeMs=now_ms,
                eventTimeWatermarkMs=max(0, watermark_ms or 0),
                timeoutConf=self.timeout,
                hasTimedOut=timed_out,
                watermarkPresent=watermark_ms is not None or self.timeout == "EventTimeTimeout",
                defined=value is not None,
                updated=False,
                removed=False,
                timeoutTimestamp=_NO_TIMESTAMP,
                keyAsUnsafe=b"",
                valueSchema=None,  # type: ignore[arg-type]
            )
            frames_out = list(self.function(key, frames, state))
            # Spark's own worker reads these fields from the state's JSON.
            at_ms, changed = state._timeout_timestamp, state._updated or state._removed
            return Called(frames_out, state.getOption, None if at_ms == _NO_TIMESTAMP else int(at_ms), changed)

        return call
