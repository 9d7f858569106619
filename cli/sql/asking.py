"""SQL asked at a moment, and what is worth knowing beside its rows: for `query` and for the shell."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ... import instants
from ..session import Session

if TYPE_CHECKING:
    import pyarrow as pa

    from ...snapshot.cut.graph import Cut
    from ...store.read.cache import SstCache


@dataclass(frozen=True, slots=True)
class Answer:
    """What a statement returned, and where."""

    cut: "Cut"
    rows: "pa.Table"
    others: "Mapping[str, Cut]"
    """The other moments that the statement names, by their refs."""


def ask(session: Session, cache: "SstCache", ref: str, sql: str, around: "tuple[Cut, bool]") -> Answer:
    """Ask at the moment of a ref, which `around` is, as `Session.cut_around` gives it; notes say what is not there."""
    from ...snapshot.cut.moments import later_stages
    from ...snapshot.query.answers import answer
    from ...snapshot.query.channel_tables import names_channels

    cut, is_whole = around
    others: dict[str, Cut] = {}
    # A stage that could not be read is none that has not begun.
    later = later_stages(session.store, cut) if is_whole else {}
    reader = session.settings.open_channels() if names_channels(sql) else None
    rows = answer(
        session.store,
        cache,
        cut,
        sql,
        later=later,
        reader=reader,
        now_ms=instants.now_ms(),
        on_moment=others.__setitem__,
    )
    named = cut.under_names_of(later).stages
    for name, head in later.items():
        if head.table is None or name.casefold() not in sql.casefold():
            continue
        if name in named:
            session.note_name(ref, name, named[name].stage)
        else:
            session.note(f"note: {name} had no version yet at {ref}: it has no rows there")
    for name, each in others.items():
        session.note_thinned(name, each.thinned)
    return Answer(cut, rows, others)


def show(session: Session, answer: Answer, limit: int) -> None:
    """Show the rows, for people the first `limit` (0 for all); for machines also what they were read from."""
    from ...results.rows import rows

    session.show(rows(answer.rows, answer.cut, answer.others, limit))
