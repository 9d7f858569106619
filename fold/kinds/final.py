"""Rows that are emitted once: those of windows when these have ended, and sessions, which are windows that grow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

import pyarrow as pa
from msgspec.structs import force_setattr

from ...errors import Usage
from .aggregate import BoundAggregates
from .due import BoundDue, window_of
from .kind import Bound, Columns, Kind, as_kind, field_of
from .session import TIMES, BoundSessions


class Final(Kind, frozen=True, tag="final"):
    """A state over windows that emits each row once, when the watermark has passed the end of its window."""

    state: Any
    """The kind that is kept."""
    once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        force_setattr(self, "state", as_kind(self.state))

    def __str__(self) -> str:
        return f"final({self.state})"

    @property
    def core(self) -> Kind:
        kind: Kind = self.state
        return kind

    @property
    def past(self) -> Literal["", "rows", "parts", "function"]:  # type: ignore[override]
        return self.core.past

    @property
    def columns(self) -> Mapping[str, str]:
        return self.core.columns

    @property
    def declaration(self) -> Kind:
        return Final(self.core.declaration)

    def narrowed(self, columns: Collection[str]) -> Kind:
        return Final(self.core.narrowed(columns))

    def renamed(self, names: Mapping[str, str]) -> Kind:
        return Final(self.core.renamed(names))

    def internal(self, names: Mapping[str, str]) -> dict[str, str]:
        return self.core.internal(names)

    def goes_on_as(self, now: Kind) -> bool:
        return self.tag == now.tag and self.core.goes_on_as(now.core)

    def may_become(self, now: Kind) -> bool:
        return self.tag == now.tag and self.core.may_become(now.core)

    def join_parts(self, name: str, earlier: Columns, later: Columns) -> dict[str, Any]:
        return self.core.join_parts(name, earlier, later)

    def is_neutral(self, name: str, default: object) -> bool:
        return self.core.is_neutral(name, default)

    def by_session(self, column: str) -> Kind:
        return Sessions(self, column)

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> Bound:
        """As of any kind. Raises as well `Usage` where the key has no window, or the state decides what it emits."""
        bound = self.core.bind(rows, key)
        why, hint = self.core.not_final
        if why:
            raise Usage(f'event_time(emits="final") of state={why}', hint=hint)
        window = window_of(pa.schema([field_of(rows[0], name) for name in key]))
        if window is None:
            raise Usage('event_time(emits="final") of a stage without a window (F.window) in its key: nothing ends')
        return BoundDue(bound, window, "watermark", final=True)


class Sessions(Kind, frozen=True, tag="sessions"):
    """Aggregates that are emitted once a session, where `column` of the key is the session."""

    state: Any
    """`Final`, of what is kept of each session."""
    column: str = ""
    """Not stored: it may get another name."""
    migrates: ClassVar[bool] = False
    waiting: ClassVar[str] = "sessions that are open"

    def __post_init__(self) -> None:
        force_setattr(self, "state", as_kind(self.state))

    def __str__(self) -> str:
        return f"sessions({self.state})"

    @property
    def declaration(self) -> Kind:
        return Sessions(self.state.declaration)

    @property
    def key_column(self) -> bool:
        return True

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> Bound:
        """As of any kind; `key` has the session. Raises as well `Usage` for a state that is no `aggregate(...)`."""
        inner = self.state.core.bind(rows, key)
        if not isinstance(inner, BoundAggregates):
            raise Usage(
                f"sessions ({self.column!r} of the key) are of state=aggregate(...), not of {self.state}",
                hint="key by what the sessions are of, and keep them as a list in state=slackwater.update(...)",
            )
        if taken := sorted({*TIMES} & {*inner.values.names}):
            raise Usage(f"column {taken[0]!r} of a session is its time already; give the aggregate another name")
        return BoundSessions(inner, self.column)
