"""Two renderers of one result: words and tables for people, JSON for machines. Both render errors too.

Results go to stdout; errors, notes and progress go to stderr, so that stdout can always be parsed or piped.
"""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from ..store.errors import SlackwaterError
from .tables import Grid, Title, as_plain, as_rich, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["JsonOutput", "Output", "Part", "Progress", "Show", "TextOutput", "output_for", "print_traceback"]

Part = Grid | Title | str
"""What a result is shown as: tables, titles and lines of text."""

_PIECE = 1 << 16
_BUG = "this is a bug in slackwater, not something you did"
_BUG_HINT = "run it again as `slackwater --debug …` and report what it prints"


class Progress(Protocol):
    """Takes the news of something that goes on."""

    def __call__(self, line: str, *picture: Part) -> None:
        """`line` is what just happened, or empty; `picture` the whole, shown in one place on a terminal."""
        ...


class Show(Protocol):
    """As `Output.show`."""

    def __call__(self, data: object, *parts: Part) -> None:
        """Show this result now."""
        ...


class Output(Protocol):
    """Where a verb hands its result."""

    def show(self, data: object, *parts: Part) -> None:
        """The result: `data` (builtins, structs, dataclasses) for machines, `parts` for people."""
        ...

    def live(self) -> AbstractContextManager[Show]:
        """While it lasts, each result shown replaces the one before (on a terminal) or follows it."""
        ...

    def note(self, line: str) -> None:
        """Something worth knowing that is not the result."""
        ...

    def progress(self) -> AbstractContextManager[Progress]:
        """While it lasts, what is told to the `Progress` is shown on stderr."""
        ...

    def error(self, error: SlackwaterError) -> None:
        """A failure that the user can do something about."""
        ...

    def bug(self, error: Exception) -> None:
        """A failure that only we can do something about."""
        ...


class JsonOutput:
    """One JSON document on stdout (one line, indented on a terminal); errors as one JSON object on stderr."""

    def show(self, data: object, *parts: Part) -> None:
        """`data` as JSON."""
        import msgspec

        # Sums of integers come as decimals from DuckDB: numbers all the same.
        encoded = msgspec.json.Encoder(decimal_format="number", enc_hook=str).encode(data)
        if sys.stdout.isatty():
            encoded = msgspec.json.format(encoded, indent=2)
        _print(encoded.decode() + "\n")

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

    def error(self, error: SlackwaterError) -> None:
        """`error` is the kind, a name in `store.errors`."""
        self._error(type(error).__name__, error.message, error.hint)

    def bug(self, error: Exception) -> None:
        """`error` is "Bug"."""
        self._error("Bug", f"{_BUG}: {_described(error)}", _BUG_HINT)

    def _error(self, kind: str, message: str, hint: str) -> None:
        import json

        described = {"error": kind, "message": message, "hint": hint}
        sys.stderr.write(json.dumps(described, ensure_ascii=False) + "\n")


class TextOutput:
    """Words and tables: drawn by rich on a terminal, plain and whole elsewhere."""

    def show(self, data: object, *parts: Part) -> None:
        """The parts, one under the other."""
        if sys.stdout.isatty():
            from rich.console import Console

            console = Console(highlight=False)
            for part in parts:
                console.print(_drawn(part, console.width), soft_wrap=not isinstance(part, Grid))
        else:
            for part in parts:
                _print(_plain(part))

    @contextmanager
    def live(self) -> Iterator[Show]:
        """On a terminal in one place, else one under the other."""
        if not sys.stdout.isatty():
            yield self.show
            return
        from rich.console import Console, Group
        from rich.live import Live

        console = Console(highlight=False)
        with Live(console=console, auto_refresh=False) as live:
            yield lambda data, *parts: live.update(
                Group(*(_drawn(part, console.width) for part in parts)), refresh=True
            )

    def note(self, line: str) -> None:
        """A line on stderr."""
        sys.stderr.write(f"{_clean(line)}\n")

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """The picture, in one place, on a terminal; else the lines."""
        if not sys.stderr.isatty():
            yield lambda line, *picture: self.note(line) if line else None
            return
        from rich.console import Console, Group
        from rich.live import Live

        console = Console(stderr=True, highlight=False)
        with Live(console=console, transient=True) as live:
            yield lambda line, *picture: live.update(
                Group(*(_drawn(part, console.width) for part in picture or (line,))), refresh=True
            )

    def error(self, error: SlackwaterError) -> None:
        """The sentence, and the next step under it."""
        self._error("error", error.message, error.hint)

    def bug(self, error: Exception) -> None:
        """What it was, and how to tell us."""
        self._error("bug", f"{_BUG}: {_described(error)}", _BUG_HINT)

    def _error(self, label: str, message: str, hint: str) -> None:
        if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
            label = f"\x1b[1;31m{label}\x1b[0m"
        sys.stderr.write(f"{label}: {_clean(message)}\n" + (f"hint: {_clean(hint)}\n" if hint else ""))


def output_for(*, json: bool) -> Output:
    """The renderer for machines or for people."""
    return JsonOutput() if json else TextOutput()


def print_traceback() -> None:
    """Where the exception that is being handled comes from, on stderr."""
    traceback.print_exc()


def _print(text: str) -> None:
    """Write to stdout, in pieces: unbuffered, Python takes the part that a closed pipe took for the whole."""
    for start in range(0, len(text), _PIECE):
        sys.stdout.write(text[start : start + _PIECE])
    sys.stdout.flush()


def _described(error: Exception) -> str:
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return ", ".join((said, *getattr(error, "__notes__", ())))


def _clean(text: str) -> str:
    """Without control characters, but in lines: DuckDB's messages show the query, and a mark under it."""
    return "\n".join(map(printable, text.splitlines()))


def _plain(part: Part) -> str:
    match part:
        case Grid():
            return as_plain(part)
        case Title(text):
            return f"{_clean(text)}\n"
        case _:
            return f"{_clean(part)}\n"


def _drawn(part: Part, width: int) -> "RenderableType":
    from rich.text import Text

    match part:
        case Grid():
            return as_rich(part, width)
        case Title(text):
            return Text(_clean(text), style="bold")
        case _:
            return Text(_clean(part))
