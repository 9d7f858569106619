"""The one way to the terminal: results as words and tables or as JSON, errors, notes and progress leave here.

Results go to stdout; errors, notes and progress go to stderr, so that stdout can always be parsed or piped.

Everything is a line, and every line goes through `printable`: the only line breaks, colours and control characters that
reach a terminal are those of this module, and of rich, which draws what was made printable before. A test sees to it
that nothing else in the package writes to stdout or stderr.
"""

import logging
import os
import select
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Literal, TextIO

import typer

from ..client.show.document import Block, TableBlock
from ..client.show.shown import Result, drawn, encoded, plain
from ..common.printable import escaped_in_json, printable
from ..errors import SlackwaterError

if TYPE_CHECKING:
    from rich.console import Console

QUOTED = "  | "
"""Before each line of text that is shown as it came: a query, the end of a log. No line of ours begins like this."""

_PIECE = select.PIPE_BUF // 4
"""In characters of up to four bytes: a pipe takes such a piece whole or not at all."""

_BUG = "this is a bug in slackwater, not something you did"
_BUG_HINT = "run it again as `slackwater --debug …` and report what it prints"


LogFormat = Literal["text", "json"]
Progress = Callable[..., None]
"""Takes a line, what just happened or empty, and then blocks: the whole, shown in one place on a terminal."""


class Printer:
    """Where a verb hands its result: drawn by rich on a terminal, plain and whole elsewhere; or one JSON document."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def show(self, result: Result) -> None:
        """The result. Raises `typer.Exit` where what was asked does not hold."""
        self._print(result)
        if result.failed:
            raise typer.Exit(1)

    def _print(self, result: Result) -> None:
        """The blocks, one under the other, and the notes on stderr; or the data, indented on a terminal."""
        if logs_json() and not self.as_json:
            _write_log("INFO", "".join(map(plain, result.blocks)).rstrip("\n"), stderr=False, **_about(result.data))
        elif not self.as_json:
            print_parts(result.blocks)
            for line in result.notes:
                self.note(line)
        else:
            data = encoded(result.data)
            if is_terminal():
                import msgspec

                data = msgspec.json.format(data, indent=2)
            _print_json(data.decode())

    @contextmanager
    def live(self) -> Iterator[Callable[[Result], None]]:
        """What it yields shows results: on a terminal in one place, else one under the other."""
        if self.as_json or logs_json() or not is_terminal():
            yield self._print
            return
        with _live() as draw:
            yield lambda result: draw((*result.blocks, *result.notes))

    def note(self, line: str) -> None:
        """A line on stderr; for machines nothing, unless they want the log: what matters to them is in the result."""
        if not self.as_json or logs_json():
            print_note(line)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """The picture, in one place, on a terminal; else the lines, as notes."""
        if self.as_json or logs_json() or not is_terminal(stderr=True):
            yield lambda line, *picture: self.note(line) if line else None
            return
        with _live(stderr=True, transient=True) as draw:
            yield lambda line, *picture: draw(picture or (line,))

    def failure(self, error: Exception) -> None:
        """The sentence, what it quotes, and the next step; for machines as `error` a name of `errors`, or "Bug"."""
        if isinstance(error, SlackwaterError):
            kind, sentence, quoted, hint = type(error).__name__, error.sentence, error.quoted, error.hint
        else:
            words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            sentence, _, quoted = ", ".join((words, *getattr(error, "__notes__", ()))).partition("\n")
            kind, sentence, hint = "Bug", f"{_BUG}: {sentence}", _BUG_HINT
        if logs_json():
            whole = f"{sentence}\n{quoted}" if quoted else sentence
            _write_log("ERROR", whole, error=kind, hint=hint or None)
            return
        if not self.as_json:
            print_failure("bug" if kind == "Bug" else "error", sentence, quoted=quoted, hint=hint)
            return
        import json

        described = {"error": kind, "message": f"{sentence}\n{quoted}" if quoted else sentence, "hint": hint}
        _print_json(json.dumps(described, ensure_ascii=False), stderr=True)


def is_terminal(*, stderr: bool = False) -> bool:
    """Whether somebody looks at what is printed."""
    return (sys.stderr if stderr else sys.stdout).isatty()


def print_parts(parts: Iterable[Block], *, stderr: bool = False) -> None:
    """Parts of a result, one under the other: drawn by rich on a terminal, plain and whole elsewhere."""
    if is_terminal(stderr=stderr):
        console = _console(stderr)
        for part in parts:
            console.print(drawn(part, console.width), soft_wrap=not isinstance(part, TableBlock))
    else:
        for part in parts:
            _write(plain(part), stderr)


def print_note(line: str) -> None:
    """A line on stderr."""
    if logs_json():
        _write_log("INFO", line)
    else:
        _write(f"{printable(line)}\n", True)


_log_format: LogFormat = "text"
_ABOUT = ("app", "stage", "version")


def log_as(log_format: LogFormat) -> None:
    """Have what is told of a verb under way be text for people, or one JSON object a line, from here on."""
    global _log_format
    _log_format = log_format


def logs_json() -> bool:
    """Whether it is JSON."""
    return _log_format == "json"


def _write_log(level: str, message: str, *, stderr: bool = True, **more: object) -> None:
    """A line of the log. What runs on this thread names its app, stage, version and span; `more` wins over these."""
    from ..common.instants import iso, now_ms
    from ..pipeline.telemetry.under_way import fields

    said = {"timestamp": iso(now_ms(), "milliseconds"), "level": level, "message": message, **fields(), **more}
    _print_json(encoded({name: value for name, value in said.items() if value is not None}).decode(), stderr=stderr)


def _about(data: object) -> dict[str, object]:
    """Of which app, stage and version a result is, where it says so."""
    said = {name: data.get(name) if isinstance(data, dict) else getattr(data, name, None) for name in _ABOUT}
    return {name: value for name, value in said.items() if value is not None}


def _print_json(document: str, *, stderr: bool = False) -> None:
    """JSON, with the values that it has; characters that could steer a terminal are JSON's escapes."""
    _write(f"{escaped_in_json(document)}\n", stderr)


def print_failure(label: str, sentence: str, *, quoted: str = "", hint: str = "") -> None:
    """`label: sentence` on stderr, under it text that is quoted line by line, then the next step."""
    if is_terminal(stderr=True) and "NO_COLOR" not in os.environ:
        label = f"\x1b[1;31m{label}\x1b[0m"
    lines = [f"{label}: {printable(sentence)}", *_quoted(quoted)]
    if hint:
        lines.append(f"hint: {printable(hint)}")
    _write("".join(f"{line}\n" for line in lines), True)


def print_traceback(error: BaseException) -> None:
    """Where an exception comes from, on stderr."""
    text = "".join(traceback.format_exception(error))
    if logs_json():
        _write_log("ERROR", str(error), error=type(error).__qualname__, stacktrace=text)
        return
    _write("".join(f"{line}\n" for line in _quoted(text)), True)


@contextmanager
def _live(*, stderr: bool = False, transient: bool = False) -> Iterator[Callable[[Sequence[Block]], None]]:
    """On a terminal: what it yields draws parts in the place of those it drew before."""
    from rich.console import Group
    from rich.live import Live

    console = _console(stderr)
    with Live(console=console, auto_refresh=transient, transient=transient) as shown:
        yield lambda parts: shown.update(Group(*(drawn(part, console.width) for part in parts)), refresh=True)


def redraw(line: str) -> None:
    """One line on stderr, a terminal, in the place of the one before; empty to take it away."""
    _write(f"\r\x1b[K{printable(line)[: max(1, get_terminal_size().columns - 1)]}", True)


def flush() -> None:
    """See that results leave this process. Raises `BrokenPipeError` when their reader has gone."""
    sys.stdout.flush()


def silence() -> None:
    """Let the interpreter's last flush go nowhere instead of complaining about the closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def handle_everything() -> None:
    """From here on, what nobody else handles comes out here: log records, warnings, errors of threads."""
    logging.lastResort = Lines(print_note, quoting=True)
    warnings.showwarning = lambda message, category, *_: print_note(f"{category.__name__}: {message}")
    sys.excepthook = lambda _kind, error, _trace: print_traceback(error)
    threading.excepthook = lambda args: None if args.exc_value is None else print_traceback(args.exc_value)


class Lines(logging.Handler):
    """Warnings and errors of the log as lines, by `note`; with `quoting`, tracebacks are quoted under them."""

    def __init__(self, note: Callable[[str], None], *, quoting: bool) -> None:
        super().__init__(logging.WARNING)
        self._note = note
        self._quoting = quoting

    def emit(self, record: logging.LogRecord) -> None:
        """Print it."""
        try:
            if logs_json():
                error = record.exc_info[1] if record.exc_info else None
                stack = "".join(traceback.format_exception(error)) if error is not None else None
                _write_log(record.levelname, record.getMessage(), logger=record.name, stacktrace=stack)
                return
            self._note(record.getMessage())
            if self._quoting and record.exc_info and record.exc_info[1] is not None:
                print_traceback(record.exc_info[1])
        except Exception:
            # What cannot be shown must not end what it is about.
            self.handleError(record)


def _console(stderr: bool) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def _write(text: str, stderr: bool) -> None:
    """In pieces: unbuffered, Python takes the part of a piece that a closed pipe took for the whole."""
    stream: TextIO = sys.stderr if stderr else sys.stdout
    if stream.encoding and stream.encoding.lower() not in ("utf-8", "utf8"):
        # Not every terminal has our words' characters.
        text = text.encode(stream.encoding, "backslashreplace").decode(stream.encoding)
    stream.writelines(text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
    stream.flush()


def _quoted(text: str) -> list[str]:
    # Only at \n: other line breaks are characters that are written out.
    return [f"{QUOTED}{printable(line)}".rstrip() for line in text.rstrip("\n").split("\n")] if text else []
