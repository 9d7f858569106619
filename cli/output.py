"""Two renderers of one result: words and tables for people, JSON for machines. Both render errors too.

Results go to stdout; errors, notes and progress go to stderr, so that stdout can always be parsed or piped.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ..errors import SlackwaterError
from ..results.document import Block, Result
from . import terminal

_BUG = "this is a bug in slackwater, not something you did"
_BUG_HINT = "run it again as `slackwater --debug …` and report what it prints"


class Progress(Protocol):
    """Takes the news of something that goes on."""

    def __call__(self, line: str, *picture: Block) -> None:
        """`line` is what just happened, or empty; `picture` the whole, shown in one place on a terminal."""
        ...


Show = Callable[[Result], None]
"""As `Output.show`."""


class JsonOutput:
    """One JSON document on stdout (one line, indented on a terminal); errors as one JSON object on stderr."""

    def show(self, result: Result) -> None:
        """The data as JSON."""
        import msgspec

        # Sums of integers come as decimals from DuckDB: numbers all the same.
        encoded = msgspec.json.Encoder(decimal_format="number", enc_hook=str).encode(result.data)
        if terminal.is_terminal():
            encoded = msgspec.json.format(encoded, indent=2)
        terminal.print_json(encoded.decode())

    @contextmanager
    def live(self) -> Iterator[Show]:
        """A document for each result."""
        yield self.show

    def note(self, line: str) -> None:
        """Nothing: what matters to a machine is in the result."""

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Nothing is shown."""
        yield lambda line, *picture: None

    def failure(self, error: Exception) -> None:
        """`error` is the kind, a name in `slackwater.errors`, or "Bug"."""
        import json

        kind, sentence, quoted, hint = _described(error)
        described = {"error": kind, "message": f"{sentence}\n{quoted}" if quoted else sentence, "hint": hint}
        terminal.print_json(json.dumps(described, ensure_ascii=False), stderr=True)


class TextOutput:
    """Words and tables: drawn by rich on a terminal, plain and whole elsewhere."""

    def show(self, result: Result) -> None:
        """The blocks, one under the other, and the notes on stderr."""
        terminal.print_parts(result.blocks)
        for line in result.notes:
            self.note(line)

    @contextmanager
    def live(self) -> Iterator[Show]:
        """On a terminal in one place, else one under the other."""
        if not terminal.is_terminal():
            yield self.show
            return
        with terminal.live() as draw:
            yield lambda result: draw((*result.blocks, *result.notes))

    def note(self, line: str) -> None:
        """A line on stderr."""
        terminal.print_note(line)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """The picture, in one place, on a terminal; else the lines."""
        if not terminal.is_terminal(stderr=True):
            yield lambda line, *picture: self.note(line) if line else None
            return
        with terminal.live(stderr=True, transient=True) as draw:
            yield lambda line, *picture: draw(picture or (line,))

    def failure(self, error: Exception) -> None:
        """The sentence, what it quotes, and the next step."""
        kind, sentence, quoted, hint = _described(error)
        terminal.print_failure("bug" if kind == "Bug" else "error", sentence, quoted=quoted, hint=hint)


Output = JsonOutput | TextOutput
"""Where a verb hands its result."""


def output_for(*, json: bool) -> Output:
    """The renderer for machines or for people."""
    return JsonOutput() if json else TextOutput()


def _described(error: Exception) -> tuple[str, str, str, str]:
    """The kind of an error, its sentence, the text that belongs under it, and the next step."""
    if isinstance(error, SlackwaterError):
        return type(error).__name__, error.sentence, error.quoted, error.hint
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    sentence, _, quoted = ", ".join((words, *getattr(error, "__notes__", ()))).partition("\n")
    return "Bug", f"{_BUG}: {sentence}", quoted, _BUG_HINT
