"""Terminal output: results as text and tables or as JSON, errors, notes and progress.

Results go to stdout; errors, notes and progress go to stderr, so that stdout can always be parsed or piped.

All output is lines, and each line goes through `printable`. Line breaks, colours and control characters come only from
this module and from rich; rich draws only text that went through `printable`. A test checks that no other module of the
package writes to stdout or stderr.
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
from ..client.show.shown import Result, encode_json, format_plain, render_for_terminal
from ..common.printable import escaped_in_json, printable
from ..errors import SlackwaterError

if TYPE_CHECKING:
    from rich.console import Console

QUOTED = "  | "
"""Prefix of each line of quoted text, such as a query or the end of a log."""

_MAX_WRITE_CHARACTERS = select.PIPE_BUF // 4
"""Maximum characters per write, each of up to four bytes: a pipe accepts such a write as a whole or not at all."""

_BUG = "this is a bug in slackwater, not something you did"
_BUG_HINT = "run it again as `slackwater --debug …` and report what it prints"


LogFormat = Literal["text", "json"]
Progress = Callable[..., None]
"""Function of a line about the last event, possibly empty, and of blocks that a terminal redraws in place."""


class Printer:
    """Output of a verb: drawn by rich on a terminal, plain text elsewhere, or one JSON document."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def show(self, result: Result) -> None:
        """Print a result. Raises `typer.Exit` with 1 if the result is a failure."""
        self._print(result)
        if result.failed:
            raise typer.Exit(1)

    def _print(self, result: Result) -> None:
        if logs_json() and not self.as_json:
            _write_log(
                "INFO", "".join(map(format_plain, result.blocks)).rstrip("\n"), stderr=False, **_log_fields(result.data)
            )
        elif not self.as_json:
            print_blocks(result.blocks)
            for line in result.notes:
                self.note(line)
        else:
            data = encode_json(result.data)
            if is_terminal():
                import msgspec

                data = msgspec.json.format(data, indent=2)
            _print_json(data.decode())

    @contextmanager
    def live(self) -> Iterator[Callable[[Result], None]]:
        """Yield a function that prints results. On a terminal, each result replaces the previous result."""
        if self.as_json or logs_json() or not is_terminal():
            yield self._print
            return
        with _live() as draw:
            yield lambda result: draw((*result.blocks, *result.notes))

    def note(self, line: str) -> None:
        """Print a line on stderr. With --json, prints only if log lines are JSON."""
        if not self.as_json or logs_json():
            print_note(line)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Yield a function for progress: on a terminal it redraws blocks in place, elsewhere it prints lines."""
        if self.as_json or logs_json() or not is_terminal(stderr=True):
            yield lambda line, *picture: self.note(line) if line else None
            return
        with _live(stderr=True, transient=True) as draw:
            yield lambda line, *picture: draw(picture or (line,))

    def show_error(self, error: Exception) -> None:
        """Print an error's sentence, quoted text and hint; as JSON with the error's class name, or "Bug"."""
        if isinstance(error, SlackwaterError):
            kind, sentence, quoted, hint = type(error).__name__, error.sentence, error.quoted, error.hint
        else:
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            sentence, _, quoted = ", ".join((text, *getattr(error, "__notes__", ()))).partition("\n")
            kind, sentence, hint = "Bug", f"{_BUG}: {sentence}", _BUG_HINT
        if logs_json():
            whole = f"{sentence}\n{quoted}" if quoted else sentence
            _write_log("ERROR", whole, error=kind, hint=hint or None)
            return
        if not self.as_json:
            print_error("bug" if kind == "Bug" else "error", sentence, quoted=quoted, hint=hint)
            return
        import json

        described = {"error": kind, "message": f"{sentence}\n{quoted}" if quoted else sentence, "hint": hint}
        _print_json(json.dumps(described, ensure_ascii=False), stderr=True)


def is_terminal(*, stderr: bool = False) -> bool:
    return (sys.stderr if stderr else sys.stdout).isatty()


def print_blocks(parts: Iterable[Block], *, stderr: bool = False) -> None:
    if is_terminal(stderr=stderr):
        console = _console(stderr)
        for part in parts:
            console.print(render_for_terminal(part, console.width), soft_wrap=not isinstance(part, TableBlock))
    else:
        for part in parts:
            _write(format_plain(part), stderr)


def print_note(line: str) -> None:
    if logs_json():
        _write_log("INFO", line)
    else:
        _write(f"{printable(line)}\n", True)


_log_format: LogFormat = "text"
_LOG_FIELDS = ("app", "stage", "version")


def set_log_format(log_format: LogFormat) -> None:
    global _log_format
    _log_format = log_format


def logs_json() -> bool:
    return _log_format == "json"


def _write_log(level: str, message: str, *, stderr: bool = True, **more: object) -> None:
    """Print a log line as JSON, with this thread's app, stage, version and span unless `more` overrides them."""
    from ..common.instants import format_iso, now_ms
    from ..pipeline.telemetry.logs import log_fields

    entry = {
        "timestamp": format_iso(now_ms(), "milliseconds"),
        "level": level,
        "message": message,
        **log_fields(),
        **more,
    }
    _print_json(
        encode_json({name: value for name, value in entry.items() if value is not None}).decode(), stderr=stderr
    )


def _log_fields(data: object) -> dict[str, object]:
    about = {name: data.get(name) if isinstance(data, dict) else getattr(data, name, None) for name in _LOG_FIELDS}
    return {name: value for name, value in about.items() if value is not None}


def _print_json(document: str, *, stderr: bool = False) -> None:
    _write(f"{escaped_in_json(document)}\n", stderr)


def print_error(label: str, sentence: str, *, quoted: str = "", hint: str = "") -> None:
    if is_terminal(stderr=True) and "NO_COLOR" not in os.environ:
        label = f"\x1b[1;31m{label}\x1b[0m"
    lines = [f"{label}: {printable(sentence)}", *_quoted(quoted)]
    if hint:
        lines.append(f"hint: {printable(hint)}")
    _write("".join(f"{line}\n" for line in lines), True)


def print_traceback(error: BaseException) -> None:
    text = "".join(traceback.format_exception(error))
    if logs_json():
        _write_log("ERROR", str(error), error=type(error).__qualname__, stacktrace=text)
        return
    _write("".join(f"{line}\n" for line in _quoted(text)), True)


@contextmanager
def _live(*, stderr: bool = False, transient: bool = False) -> Iterator[Callable[[Sequence[Block]], None]]:
    from rich.console import Group
    from rich.live import Live

    console = _console(stderr)
    with Live(console=console, auto_refresh=transient, transient=transient) as shown:
        yield lambda parts: shown.update(
            Group(*(render_for_terminal(part, console.width) for part in parts)), refresh=True
        )


def redraw_line(line: str) -> None:
    """Replace the current line of stderr, a terminal; an empty line removes it."""
    _write(f"\r\x1b[K{printable(line)[: max(1, get_terminal_size().columns - 1)]}", True)


def flush() -> None:
    """Flush stdout. Raises `BrokenPipeError` if no process reads it any more."""
    sys.stdout.flush()


def silence_stdout() -> None:
    """Redirect stdout to /dev/null, so that the interpreter's last flush does not fail on a closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def install_handlers() -> None:
    """Print log records, warnings and thread errors that have no other handler."""
    logging.lastResort = NoteHandler(print_note, quoting=True)
    warnings.showwarning = lambda message, category, *_: print_note(f"{category.__name__}: {message}")
    sys.excepthook = lambda _kind, error, _trace: print_traceback(error)
    threading.excepthook = lambda args: None if args.exc_value is None else print_traceback(args.exc_value)


class NoteHandler(logging.Handler):
    """Log handler that passes warnings and errors to `note`; with `quoting`, tracebacks are quoted below them."""

    def __init__(self, note: Callable[[str], None], *, quoting: bool) -> None:
        super().__init__(logging.WARNING)
        self._note = note
        self._quoting = quoting

    def emit(self, record: logging.LogRecord) -> None:
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
            # A log record that cannot be printed must not stop the program.
            self.handleError(record)


def _console(stderr: bool) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def _write(text: str, stderr: bool) -> None:
    """Write text in pieces that a pipe accepts whole, because unbuffered Python does not detect a partial write."""
    stream: TextIO = sys.stderr if stderr else sys.stdout
    if stream.encoding and stream.encoding.lower() not in ("utf-8", "utf8"):
        # Some terminals cannot encode all characters of the output.
        text = text.encode(stream.encoding, "backslashreplace").decode(stream.encoding)
    stream.writelines(
        text[start : start + _MAX_WRITE_CHARACTERS] for start in range(0, len(text), _MAX_WRITE_CHARACTERS)
    )
    stream.flush()


def _quoted(text: str) -> list[str]:
    # Split only at \n: `printable` escapes other line breaks.
    return [f"{QUOTED}{printable(line)}".rstrip() for line in text.rstrip("\n").split("\n")] if text else []
