"""SQL as it is typed: asking a statement at a moment, and the shell of `slackwater sql`, which moves in time."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from .. import instants
from ..errors import Usage
from ..results.document import Result, Table
from .session import Session

if TYPE_CHECKING:
    import pyarrow as pa

    from ..moments.cut.graph import Cut


def ask(session: Session, ref: str, sql: str, around: "tuple[Cut, bool]") -> "tuple[pa.Table, Mapping[str, Cut]]":
    """The rows that a statement returns, and the other moments that it names, by their refs. Notes say what is missing.

    `around` is the moment of the ref, as `Session.cut_around` gives it.
    """
    from ..client.moment import rows_of
    from ..moments.cut.moments import later_stages

    cut, is_whole = around
    others: dict[str, Cut] = {}
    # A stage that could not be read is none that has not begun.
    later = later_stages(session.store, cut) if is_whole else {}
    rows = rows_of(session.client, cut, sql, later, others.__setitem__)
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
    return rows, others


_HELP = (
    ("SQL;", "DuckDB's, over the tables of the moment; SHOW TABLES; and DESCRIBE TABLE; tell what there is"),
    ("AT MOMENT;", "ask what follows at that moment: -5m, before-deploy, 2026-11-21T07:12, ~3, app/stage@v42, now"),
    ("AT;", "tell which moment it is"),
    ("… FROM TABLE AT 'MOMENT';", "one table at another moment"),
    ("… FROM versions('TABLE', 'FROM', 'TO', 'STEP');", "one table at many of its versions"),
    ("HELP; EXIT;", "this, and the end; Ctrl-D ends as well"),
)


class Shell:
    """Carries out statements. What fails is told, and the next one is asked all the same.

    Args:
        session: where results go.
        ref: the moment to begin at.
        limit: how many rows are printed for people; 0 for all.

    Raises:
        Usage: `ref` is none.
        NotFound: there is no such app or moment.
    """

    def __init__(self, session: Session, ref: str, limit: int) -> None:
        self._session = session
        self._limit = limit
        self._ref = ref
        self._pinned: tuple[Cut, bool] | None = None
        self._move(ref)

    @property
    def ref(self) -> str:
        """The moment at which statements are asked."""
        return self._ref

    def run(self, statements: Iterable[str]) -> int:
        """Carry out statements up to their end, or EXIT. Returns how many have failed."""
        failed = 0
        for text in statements:
            try:
                if not self._carry_out(text):
                    break
            except KeyboardInterrupt:
                self._session.note("interrupted")
                failed += 1
            except Exception as error:
                self._session.output.failure(error)
                failed += 1
        return failed

    def names(self) -> list[tuple[str, str]]:
        """What may stand in a statement, each with what it is: the tables and columns of the moment."""
        from ..moments.query.columns import columns

        cut, _ = self._around()
        found = [(name, "table") for name in cut.tables]
        for name, manifest in cut.tables.items():
            found += [(each.name, f"{each.type} of {name}") for each in columns(manifest)]
        return found

    def moments(self) -> list[tuple[str, str]]:
        """What may stand behind AT, each with what it is: the app's snapshots."""
        from ..moments.cut.stored import list_snapshots

        app = self._ref.partition("@")[0].partition("/")[0]
        found = [(each.name, instants.when(each.completed_ms)) for each in list_snapshots(self._session.store, app)]
        return [*reversed(found), ("now", "as it goes on")]

    def _carry_out(self, text: str) -> bool:
        """Whether to go on after it."""
        from ..moments.query.clauses import words

        first, *others = words(text)
        if first.says("at"):
            self._at(text[first.end :].strip())
        elif not others and first.says("help"):
            lines = [{"type": what, "to": why} for what, why in _HELP]
            self._session.show(Result(lines, Table.of(("type", "to"), _HELP)))
        elif not others and (first.says("exit") or first.says("quit")):
            return False
        else:
            from ..results.rows import rows

            around = self._around()
            found, moments = ask(self._session, self._ref, text, around)
            self._session.show(rows(found, around[0], moments, self._limit))
        return True

    def _at(self, said: str) -> None:
        from ..moments.query.moments import ref_of_words

        if said:
            app = self._ref.partition("@")[0].partition("/")[0]
            unquoted = said[1:-1] if said[0] == said[-1] == "'" and len(said) > 2 else said
            self._move(ref_of_words(self._session.store, app, unquoted, now_ms=instants.now_ms()))
        cut, _ = self._around()
        versions = ", ".join(f"{stage}@v{version}" for stage, version in cut.versions.items())
        data = {"app": cut.app, "ref": self._ref, "versions": cut.versions, "thinned_out": cut.thinned}
        line = f"at {self._ref}, committed {instants.when(cut.time_ms)}: {versions}"
        self._session.show(Result(data, line))

    def _move(self, ref: str) -> None:
        """Go to a moment. But for the newest, which goes on, it is always the same from here on."""
        from ..moments.cut.refs import AtTime, Latest, parse

        parsed = parse(ref, now_ms=instants.now_ms())
        found = self._session.cut_around(ref, "shown")
        self._pinned = None if isinstance(parsed.moment, Latest) else found
        if isinstance(parsed.moment, AtTime) and parsed.moves:
            ref = f"{ref.partition('@')[0]}@{instants.iso(parsed.moment.time_ms, 'milliseconds')}"
        self._ref = ref

    def _around(self) -> "tuple[Cut, bool]":
        return self._pinned or self._session.cut_around(self._ref, "shown")


def read(lines: Iterable[bytes]) -> Iterator[str]:
    """The statements in these lines, each as soon as its `;` has come, and what comes after the last.

    Raises:
        Usage: a line is not UTF-8.
    """
    from ..moments.query.clauses import split, words

    rest = ""
    for number, line in enumerate(lines, 1):
        try:
            rest += line.decode()
        except UnicodeDecodeError as error:
            raise Usage(f"line {number} of standard input is not UTF-8", hint="save it as UTF-8") from error
        statements, rest = split(rest)
        yield from statements
    if words(rest):
        yield rest


def typed(ask: Callable[[], str]) -> Iterator[str]:
    """The statements that a person types, up to Ctrl-D; Ctrl-C drops what is typed so far.

    `ask` gives a text that `is_finished`, and raises `KeyboardInterrupt` and `EOFError` for these keys.
    """
    from ..moments.query.clauses import split, words

    while True:
        try:
            text = ask()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        statements, rest = split(text)
        yield from statements
        if words(rest):
            yield rest


def is_finished(text: str) -> bool:
    """Whether a text that is typed can be carried out: nothing comes after its last `;`, but a word that needs none."""
    from ..moments.query.clauses import split, words

    _, rest = split(text)
    left = words(rest)
    return not left or (len(left) == 1 and any(left[0].says(word) for word in ("exit", "quit", "help")))
