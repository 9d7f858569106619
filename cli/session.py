"""What every verb works with: settings, the store they name, the output; and the decorator that hands it over."""

import inspect
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import typer

from ..client.show.formats import store_flag
from ..common import instants
from ..common.parameters import declaration_of, param_of, parameters_of
from ..errors import Protected, SlackwaterError, Usage
from . import options
from .groups import Either, Group, Verb
from .quick import verb_begins
from .terminal import LogFormat, Printer, is_terminal, log_as

if TYPE_CHECKING:
    from ..client import Client, StoredApp
    from ..client.show.shown import Result
    from ..pipeline.run.stopping import Stop
    from ..settings import Settings


class Session(Printer):
    """The output, and the options that verbs share. Nothing is read or opened before it is asked for."""

    def __init__(self, store: str | None, kafka: str | None, message: str = "", *, as_json: bool) -> None:
        super().__init__(as_json=as_json)
        self.store_option = store
        self._kafka, self._message = kafka, message

    def show(self, result: "Result") -> None:
        """Show the result, with commands to type next that reach the same store. Raises as `Printer.show`."""
        super().show(result.with_flags(store_flag(self.store_option)))

    def recording(self) -> AbstractContextManager[None]:
        """Inside, the log of operations gets the message with whatever is done. Raises `Usage` for one that is none."""
        if not self._message:
            return nullcontext()
        from ..snapshot.take.audit_log import because

        return because(self._message)

    @cached_property
    def settings(self) -> "Settings":
        """Where things are. Raises `Usage`."""
        from ..settings import load

        return load(store=self.store_option, kafka=self._kafka)

    @cached_property
    def client(self) -> "Client":
        """The Python API over the store that the settings name. Raises `Usage`."""
        from ..client import Client

        return Client(self.settings, note=self.note, flags=store_flag(self.store_option))

    def app(self, ref: str) -> "StoredApp":
        """The app of that name, or of a ref. Whether there is one, its methods find out."""
        return self.client.called(ref.partition("@")[0].partition("/")[0])

    def stage(self, text: str) -> "tuple[StoredApp, str]":
        """The app and the name of a stage, written as `APP/STAGE`. Raises `Usage`."""
        from ..client.backends import names_of_stage

        app, stage = names_of_stage(text)
        return self.app(app), stage

    def table(self, text: str, key: Sequence[str] = ()) -> "tuple[StoredApp, str]":
        """The app and the name of a table, written as `APP/TABLE`. Raises as `check_table`, also for a moment."""
        from ..client.backends import names_of_stage

        check_table(text, key)
        app, table = names_of_stage(text, "table")
        return self.app(app), table

    def asked_for_name(self, error: Protected) -> str:
        """The name of a protected app, as a person types it. Raises the error where nobody can be asked."""
        if not (sys.stdin.isatty() and is_terminal(stderr=True)):
            raise error
        self.note(error.message)
        return str(typer.prompt("the app's name, to do it all the same", err=True)).strip()

    def close(self) -> None:
        """Give back open files."""
        if "client" in self.__dict__:
            self.client.close()


def check_table(text: str, key: Sequence[str]) -> None:
    """Raise `Usage` where `text` is an app alone, and the first word of the key its table, perhaps."""
    app, at, moment = text.partition("@")
    if "/" not in app and key:
        table, *values = key
        words = " ".join([f"{app}/{table}{at}{moment}", *values]) if values else f"{app}/TABLE{at}{moment} {table}"
        raise Usage(f"{text!r} names no table; expected APP/TABLE and then the key", hint=f"write {words}")


_TELL_S = 1.0
"""A person reads no faster."""


def now_and_then(progress: Callable[[str], None]) -> Callable[[str], None]:
    """Tells of what it is told once a second, and not at first: most verbs are done by then."""
    last_s = time.monotonic()

    def tell(line: str) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > _TELL_S:
            last_s = time.monotonic()
            progress(line)

    return tell


def group(explanation: str = "", *examples: str) -> typer.Typer:
    """A verb that has verbs of its own; without an explanation it is one by itself, too: `verb(of=…, whole=True)`."""
    if not explanation:
        metavar = "| COMMAND [ARGS]..."
        return typer.Typer(cls=Either, add_completion=False, no_args_is_help=True, subcommand_metavar=metavar)
    app = typer.Typer(cls=Group, add_completion=False, no_args_is_help=True)
    app.callback(help=explanation, epilog=options.examples(*examples))(lambda: None)
    return app


_LAST = {"yes_really": 2, "dry_run": 3}
"""Options that come last in the help of each verb that has them."""


def verb(
    *examples: str,
    of: typer.Typer | None = None,
    name: str | None = None,
    whole: bool = False,
    store: bool = True,
    kafka: bool = False,
    changes: bool = False,
    goes_on: bool = False,
    declared_first: bool = False,
) -> Callable[[Callable[..., None]], typer.Typer]:
    """Make a command of a function whose first parameter is its `Session`.

    It has an option for each parameter of a declaration (`**options: Unpack[…]`), in the help behind those of its own
    unless they are to be `declared_first`. In place of the session it has the
    options that verbs share: --json, and --store and --kafka if it is to, and --message where it `changes` something,
    which the log of operations tells, and --log-format where it `goes_on` for long. Where a function has `yes_really`,
    and the app is protected, a person types its name when asked, and the function is called with it. The verb's
    help ends with the examples. `of` is the group that it belongs to, `whole` makes it what the group itself does;
    `name` is its name, where that is not the function's. Returns the typer app.
    """
    app = of or typer.Typer(add_completion=False)

    def place(parameter: inspect.Parameter) -> int:
        is_declared = param_of(parameter) is not None
        return _LAST.get(parameter.name, int(is_declared != declared_first))

    def register(body: Callable[..., None]) -> typer.Typer:
        def command(
            *,
            store: str | None = None,
            kafka: str | None = None,
            message: str = "",
            log_format: LogFormat = "text",
            as_json: bool = False,
            **own: Any,
        ) -> None:
            verb_begins()
            log_as(log_format)
            own = {name: options.value_of(known[name], value) for name, value in own.items()}
            with closing(Session(store, kafka, message, as_json=as_json)) as session, session.recording():
                try:
                    body(session, **own)
                except Protected as error:
                    if own.get("yes_really", "…"):
                        raise  # it was typed, or cannot be
                    body(session, **own | {"yes_really": session.asked_for_name(error)})

        keyword = inspect.Parameter.KEYWORD_ONLY
        known = {each.name: each for each in sorted(parameters_of(body), key=place)}
        del known["session"]
        parameters = [options.of_parameter(each).replace(kind=keyword) for each in known.values()]
        if store:
            parameters.append(inspect.Parameter("store", keyword, default=options.STORE, annotation=str | None))
        if kafka:
            parameters.append(inspect.Parameter("kafka", keyword, default=options.KAFKA, annotation=str | None))
        if changes:
            parameters.append(inspect.Parameter("message", keyword, default=options.MESSAGE, annotation=str))
        if goes_on:
            parameters.append(
                inspect.Parameter("log_format", keyword, default=options.LOG_FORMAT, annotation=LogFormat)
            )
        parameters.append(inspect.Parameter("as_json", keyword, default=options.JSON, annotation=bool))
        command.__doc__ = body.__doc__ or declaration_of(body).__doc__
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        epilog = options.examples(*examples)
        if whole:
            app.callback(invoke_without_command=True, epilog=epilog)(command)
        else:
            app.command(name or body.__name__, cls=Verb, epilog=epilog)(command)
        return app

    return register


_RETRY_S = 5.0
"""After so long what failed is tried again."""


def repeat(
    session: Session,
    stop: "Stop",
    due_ms: Callable[[], int],
    act: Callable[[], object],
    *,
    ends: tuple[type[SlackwaterError], ...] = (),
) -> None:
    """`act` whenever it is due, until somebody asks to stop.

    What it raises is told once and tried again: storage will be there again, what is damaged may be mended, and nothing
    is lost meanwhile. Raises those of the errors that `ends` names.
    """
    last_error = ""
    while not stop.wait(max(0.0, (due_ms() - instants.now_ms()) / 1_000)):
        try:
            act()
            last_error = ""
        except SlackwaterError as error:
            if isinstance(error, ends):
                raise
            if error.message != last_error:
                session.failure(error)
                session.note(f"trying again every {_RETRY_S:g} s")
            last_error = error.message
            stop.wait(_RETRY_S)
