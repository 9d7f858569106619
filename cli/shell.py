"""SQL as it is typed: asking a statement at a moment, and the shell of `slackwater sql`, which moves in time."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from .. import instants
from ..errors import Usage
from ..results.document import TableBlock
from ..results.shown import Result
from .session import Session

if TYPE_CHECKING:
    from ..client import Moment

_HELP = (
    ("SQL;", "DuckDB's, over the tables of the moment; SHOW TABLES; and DESCRIBE TABLE; tell what there is"),
    ("AT MOMENT;", "ask what follows at that moment: -5m, before-deploy, 2026-11-21T07:12, ~3, app/stage@v42, now"),
    ("AT;", "tell which moment it is"),
    ("… FROM TABLE AT 'MOMENT';", "one table at another moment"),
    ("… FROM versions('TABLE', 'FROM', 'TO', 'STEP');", "one table at many of its versions"),
    ("HELP; EXIT;", "this, and the end; Ctrl-D ends as well"),
)


class Shell:
    """Carries out statements, from the moment `ref` on. What fails is told, and the next one is asked all the same.

    `limit` is how many rows are printed for people; 0 for all. Raises `Usage` where `ref` is none, and `NotFound`
    where there is no such app or moment.
    """

    def __init__(self, session: Session, ref: str, limit: int) -> None:
        self._session = session
        self._limit = limit
        self._app = session.app(ref)
        self.ref = ref
        """The moment at which statements are asked."""
        self._pinned: Moment | None = None
        self._move(ref)

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
                self._session.failure(error)
                failed += 1
        return failed

    def names(self) -> list[tuple[str, str]]:
        """What may stand in a statement, each with what it is: the tables and columns of the moment."""
        tables = self._moment().tables
        columns = [(each.name, f"{each.type} of {name}") for name, listed in tables.items() for each in listed]
        return [*((name, "table") for name in tables), *columns]

    def moments(self) -> list[tuple[str, str]]:
        """What may stand behind AT, each with what it is: the app's snapshots."""
        found = [(each.name, instants.when(each.completed_ms)) for each in self._app.snapshots]
        return [*reversed(found), ("now", "as it goes on")]

    def _carry_out(self, text: str) -> bool:
        """Whether to go on after it."""
        from ..moments.query.clauses import bare, words

        first, *others = words(text)
        if first.says("at"):
            self._at(bare(text[first.end :]))
        elif not others and first.says("help"):
            lines = [{"type": what, "to": why} for what, why in _HELP]
            self._session.show(Result(lines, TableBlock.of(("type", "to"), _HELP)))
        elif not others and (first.says("exit") or first.says("quit")):
            return False
        else:
            from ..results.rows import rows

            moment = self._moment()
            self._session.show(rows(*moment.answer(text), moment.cut, self._limit))
        return True

    def _at(self, moment: str) -> None:
        from ..moments.query.moments import ref_of_words

        if moment:
            unquoted = moment[1:-1] if moment[0] == moment[-1] == "'" and len(moment) > 2 else moment
            store, now_ms = self._session.client.store, instants.now_ms()
            self._move(ref_of_words(store, self._app.name, unquoted, now_ms=now_ms))
        cut = self._moment().cut
        versions = ", ".join(f"{stage}@v{version}" for stage, version in cut.versions.items())
        data = {"app": cut.app, "ref": self.ref, "versions": cut.versions, "thinned_out": cut.thinned}
        self._session.show(Result(data, f"at {self.ref}, committed {instants.when(cut.time_ms)}: {versions}"))

    def _move(self, ref: str) -> None:
        """Go to a moment. But for the newest, which goes on, it is always the same from here on."""
        from ..moments.cut.refs import AtTime, Latest, parse

        parsed = parse(ref, now_ms=instants.now_ms())
        found = self._session.client.moment(ref, "shown")
        self._pinned = None if isinstance(parsed.moment, Latest) else found
        if isinstance(parsed.moment, AtTime) and parsed.moves:
            ref = f"{ref.partition('@')[0]}@{instants.iso(parsed.moment.time_ms, 'milliseconds')}"
        self.ref = ref

    def _moment(self) -> "Moment":
        return self._pinned or self._session.client.moment(self.ref, "shown")


def read(lines: Iterable[bytes]) -> Iterator[str]:
    """The statements in these lines, each as soon as its `;` has come, and what comes after the last.

    Raises `Usage` where a line is not UTF-8.
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
    while True:
        try:
            text = ask()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        yield from read([text.encode()])


def is_finished(text: str) -> bool:
    """Whether a text that is typed can be carried out: nothing comes after its last `;`, but a word that needs none."""
    from ..moments.query.clauses import split, words

    rest = words(split(text)[1])
    return not rest or (len(rest) == 1 and any(rest[0].says(word) for word in ("exit", "quit", "help")))
