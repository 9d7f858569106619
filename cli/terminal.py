"""The one way to the terminal: whatever is printed for people or machines leaves this process here.

Everything is a line, and every line goes through `printable`: the only line breaks, colours and control characters that
reach a terminal are those of this module, and of rich, which draws what was made printable before. A test sees to it
that nothing else in the package writes to stdout or stderr.
"""

import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import TYPE_CHECKING, TextIO

from ..printable import escaped_in_json, printable
from ..results.document import Block, Table
from ..results.text import drawn, plain

if TYPE_CHECKING:
    from rich.console import Console

QUOTED = "  | "
"""Before each line of text that is shown as it came: a query, the end of a log. No line of ours begins like this."""

_PIECE = 1 << 16


def is_terminal(*, stderr: bool = False) -> bool:
    """Whether somebody looks at what is printed."""
    return _stream(stderr).isatty()


def print_parts(parts: Iterable[Block], *, stderr: bool = False) -> None:
    """Parts of a result, one under the other: drawn by rich on a terminal, plain and whole elsewhere."""
    if is_terminal(stderr=stderr):
        console = _console(stderr)
        for part in parts:
            console.print(drawn(part, console.width), soft_wrap=not isinstance(part, Table))
    else:
        for part in parts:
            _write(plain(part), stderr)


def print_note(line: str) -> None:
    """A line on stderr."""
    _write(f"{printable(line)}\n", True)


def print_json(document: str, *, stderr: bool = False) -> None:
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
    _write("".join(f"{line}\n" for line in _quoted(text)), True)


@contextmanager
def live(*, stderr: bool = False, transient: bool = False) -> Iterator[Callable[[Sequence[Block]], None]]:
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
            self._note(record.getMessage())
            if self._quoting and record.exc_info and record.exc_info[1] is not None:
                print_traceback(record.exc_info[1])
        except Exception:
            # What cannot be shown must not end what it is about.
            self.handleError(record)


def _stream(stderr: bool) -> TextIO:
    return sys.stderr if stderr else sys.stdout


def _console(stderr: bool) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def _write(text: str, stderr: bool) -> None:
    """In pieces: unbuffered, Python takes the part that a closed pipe took for the whole."""
    stream = _stream(stderr)
    if stream.encoding and stream.encoding.lower() not in ("utf-8", "utf8"):
        # Not every terminal has our words' characters.
        text = text.encode(stream.encoding, "backslashreplace").decode(stream.encoding)
    for start in range(0, len(text), _PIECE):
        stream.write(text[start : start + _PIECE])
    stream.flush()


def _quoted(text: str) -> list[str]:
    # Only at \n: other line breaks are characters that are written out.
    return [f"{QUOTED}{printable(line)}".rstrip() for line in text.rstrip("\n").split("\n")] if text else []
