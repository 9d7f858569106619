"""Event time options of a stage beyond `withWatermark`, and the stage `<stage>_late` of late rows."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ...common.arguments import checked
from ...common.durations import parse_ms
from ...errors import Usage
from ...state.kinds.kind import Kind
from ...store.versions.limits import MAX_TTL_MS
from .sink import FunctionSink, Sink, TopicSink
from .topic import Repartition, repartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Emits: TypeAlias = Literal["changes", "final"]
Late: TypeAlias = Literal["drop", "keep", "table"] | Repartition | Sink


@dataclass(frozen=True, slots=True)
class EventTimeOptions:
    """Options of a stage's event time, as `event_time` takes them."""

    ahead_ms: int
    late: Late = "drop"
    emits: Emits = "changes"


@checked
def event_time(*, ahead: str = "1 day", late: Late = "drop", emits: Emits = "changes") -> EventTimeOptions:
    """Return options for a stage whose rows have a watermark, beyond Spark's `withWatermark`.

    Args:
        ahead: How far ahead of the wall clock an event's time may be. Later times do not move the watermark, so that a
            single record from the year 55,840 cannot advance it.
        late: Handling of rows whose key has a window (`F.window`) that the watermark has passed, or that begins beyond
            `ahead`. `"keep"`: they change the table like other rows. Otherwise they do not change the table and are
            counted: `"drop"` only counts them; `"table"` adds a stage `<stage>_late` with the same key and state; a
            `repartition(...)`, a `sink(...)` or a `foreach_version(...)` receives them with the columns of the stage's
            function.
        emits: Emitted rows of a stage whose key has a window: `"changes"`, the rows that each batch changed; `"final"`,
            each row once, after the watermark has passed the end of its window. Sessions (`F.session_window`) are
            always final.

    Raises `Usage` if `ahead` is no duration from 0 to a million days, if `late` or `emits` is invalid, or if late rows
    would change windows that were already emitted as final.
    """
    ahead_ms = parse_ms("event_time: ahead", ahead)
    if not 0 <= ahead_ms <= MAX_TTL_MS:
        raise Usage(f"event_time: ahead is {ahead!r}; expected 0 seconds to 1,000,000 days")
    if late not in ("drop", "keep", "table") and not isinstance(late, Repartition | TopicSink | FunctionSink):
        raise Usage(
            f"event_time: late is {late!r}; expected 'drop', 'keep', 'table', a slackwater.repartition(...) or a "
            "slackwater.sink(...)"
        )
    if emits not in ("changes", "final"):
        raise Usage(f"event_time: emits is {emits!r}; expected 'changes' or 'final'")
    if emits == "final" and late == "keep":
        raise Usage(
            'event_time: late="keep" would change windows that emits="final" has emitted; choose another of either'
        )
    return EventTimeOptions(ahead_ms, late, emits)


DEFAULT_EVENT_TIME = event_time()


def late_channel(stage: str, key: tuple[str, ...], state: Kind | None) -> Repartition:
    """Return the channel to the table of a stage's late rows. Raises `Usage` if the stage cannot have one."""
    if state is not None and state.no_late_table:
        raise Usage(
            f"stage {stage!r} cannot have a table of late rows: it would be {state.no_late_table}",
            hint='set late=slackwater.repartition(...), and keep these rows in a stage of your own; or late="drop"',
        )
    if not key or state is None:
        raise Usage(
            f"stage {stage!r} has a table of late rows, but no {'state' if state is None else 'key'}= for it",
            hint="the table uses the stage's own state= and key=[...], with a window in the key",
        )
    return repartition(f"{stage}-late", key)


def as_they_came(rows: "DataFrame") -> "DataFrame":
    """Return the rows unchanged: the function of a stage of late rows."""
    return rows
