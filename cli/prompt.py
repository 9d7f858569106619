"""Where a person types SQL: prompt-toolkit with a history file, completion, and lines up to a `;`."""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.output import create_output

from ..errors import SlackwaterError
from ..printable import printable
from .shell import Shell, is_finished

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output

_KEYWORDS = (
    *("SELECT", "DISTINCT", "FROM", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT", "UNION ALL", "WITH", "AS"),
    *("JOIN", "LEFT JOIN", "USING", "ON", "AND", "OR", "NOT", "IN", "IS NULL", "BETWEEN", "LIKE", "DESC"),
    *("CASE", "WHEN", "THEN", "ELSE", "END", "count", "sum", "min", "max", "avg", "round"),
    *("SHOW TABLES", "DESCRIBE", "SUMMARIZE", "EXPLAIN", "AT", "versions", "inflight", "HELP", "EXIT"),
)
_WORD = re.compile(r"[\w@~:./-]*$")
_BEFORE_MOMENT = re.compile(r"\bAT\s+'?$", re.IGNORECASE)
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


def prompter(shell: Shell, input: "Input | None" = None, output: "Output | None" = None) -> Callable[[], str]:  # noqa: A002
    """Asks, at `input` and `output` or else this process's terminal, for a text that `shell` can carry out.

    Raises `KeyboardInterrupt` and `EOFError` as `shell.typed` has them.
    """
    session: PromptSession[str] = PromptSession(
        history=_history(),
        completer=Names(shell),
        complete_in_thread=True,
        multiline=Condition(lambda: not is_finished(get_app().current_buffer.text)),
        input=input,
        output=output or create_output(always_prefer_tty=True),
    )

    def ask() -> str:
        ref = printable(shell.ref)
        return session.prompt(f"{ref}> ", prompt_continuation=lambda width, *_: f"{'...> ':>{width}}")

    return ask


class Names(Completer):
    """Tables, columns and SQL's words; behind AT the moments that have names."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._known: tuple[str, list[tuple[str, str]]] = ("", [])

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """What the word before the cursor may become."""
        before = document.text_before_cursor
        match = _WORD.search(before)
        word = match[0] if match else ""
        is_moment = _BEFORE_MOMENT.search(before[: len(before) - len(word)]) is not None
        if not (word or is_moment):
            return
        try:
            if not is_moment and self._known[0] != self._shell.ref:
                # Those of the moment, looked up when it is another one.
                self._known = (self._shell.ref, [*self._shell.names(), *((word, "") for word in _KEYWORDS)])
            candidates = self._shell.moments() if is_moment else self._known[1]
        except SlackwaterError:
            return  # whoever asks for rows is told
        for name, what in candidates:
            if name.casefold().startswith(word.casefold()):
                text = name if is_moment or what == "" or _PLAIN.fullmatch(name) else f'"{name}"'
                yield Completion(text, -len(word), display=printable(name), display_meta=printable(what))


def _history() -> History:
    """What was typed before, in the user's own folder; only of this session where that cannot be written."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = state / "slackwater" / "sql_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Queries may name what is nobody else's business.
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
