"""Results as words and tables for people, or as JSON for machines; errors in both ways, too.

Results go to stdout; errors, notes and progress go to stderr, so that stdout can always be parsed or piped.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ..errors import SlackwaterError
from ..results.document import Block
from ..results.shown import Result
from . import terminal

_BUG = "this is a bug in slackwater, not something you did"
_BUG_HINT = "run it again as `slackwater --debug …` and report what it prints"


class Progress(Protocol):
    """Takes the news of something that goes on."""

    def __call__(self, line: str, *picture: Block) -> None:
        """`line` is what just happened, or empty; `picture` the whole, shown in one place on a terminal."""
        ...


class Output:
    """Where a verb hands its result: drawn by rich on a terminal, plain and whole elsewhere; or one JSON document."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def show(self, result: Result) -> None:
        """The blocks, one under the other, and the notes on stderr; or the data, indented on a terminal."""
        if not self.as_json:
            terminal.print_parts(result.blocks)
            for line in result.notes:
                self.note(line)
            return
        import msgspec

        # Sums of integers come as decimals from DuckDB: numbers all the same.
        encoded = msgspec.json.Encoder(decimal_format="number", enc_hook=str).encode(result.data)
        if terminal.is_terminal():
            encoded = msgspec.json.format(encoded, indent=2)
        terminal.print_json(encoded.decode())

    @contextmanager
    def live(self) -> Iterator[Callable[[Result], None]]:
        """What it yields shows results: on a terminal in one place, else one under the other."""
        if self.as_json or not terminal.is_terminal():
            yield self.show
            return
        with terminal.live() as draw:
            yield lambda result: draw((*result.blocks, *result.notes))

    def note(self, line: str) -> None:
        """A line on stderr; for machines nothing: what matters to them is in the result."""
        if not self.as_json:
            terminal.print_note(line)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """The picture, in one place, on a terminal; else the lines, as notes."""
        if self.as_json or not terminal.is_terminal(stderr=True):
            yield lambda line, *picture: self.note(line) if line else None
            return
        with terminal.live(stderr=True, transient=True) as draw:
            yield lambda line, *picture: draw(picture or (line,))

    def failure(self, error: Exception) -> None:
        """The sentence, what it quotes, and the next step; for machines as `error` a name of `errors`, or "Bug"."""
        kind, sentence, quoted, hint = _described(error)
        if not self.as_json:
            terminal.print_failure("bug" if kind == "Bug" else "error", sentence, quoted=quoted, hint=hint)
            return
        import json

        described = {"error": kind, "message": f"{sentence}\n{quoted}" if quoted else sentence, "hint": hint}
        terminal.print_json(json.dumps(described, ensure_ascii=False), stderr=True)


def _described(error: Exception) -> tuple[str, str, str, str]:
    """The kind of an error, its sentence, the text that belongs under it, and the next step."""
    if isinstance(error, SlackwaterError):
        return type(error).__name__, error.sentence, error.quoted, error.hint
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    sentence, _, quoted = ", ".join((words, *getattr(error, "__notes__", ()))).partition("\n")
    return "Bug", f"{_BUG}: {sentence}", quoted, _BUG_HINT
