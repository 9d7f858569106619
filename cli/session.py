"""Session of a verb (settings, client, output), and the decorator that turns a function into a command."""

import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import typer

from ..client.show.formats import store_flag
from ..common import instants, runtime
from ..common.arguments import all_parameters, declaration_of, param_of
from ..errors import Protected, SlackwaterError, Usage
from . import options
from .groups import Group, Verb, VerbGroup
from .quick import restore_plugins
from .terminal import LogFormat, Printer, is_terminal, set_log_format

if TYPE_CHECKING:
    from ..client import Client, StoredApp
    from ..client.show.shown import Result
    from ..pipeline.run.stopping import StopEvent
    from ..settings import Settings


class Session(Printer):
    """Output and shared options of a verb. The settings and the store are opened on first use."""

    def __init__(self, store: str | None, kafka: str | None, message: str = "", *, as_json: bool) -> None:
        super().__init__(as_json=as_json)
        self.store_option = store
        self._kafka, self._message = kafka, message

    def show(self, result: "Result") -> None:
        super().show(result.with_flags(store_flag(self.store_option)))

    def message_context(self) -> AbstractContextManager[None]:
        """Return a context in which operations are logged with --message. Raises `Usage` if it is invalid."""
        if not self._message:
            return nullcontext()
        from ..snapshot.take.audit_log import because

        return because(self._message)

    @cached_property
    def settings(self) -> "Settings":
        from ..settings import load

        return load(store=self.store_option, kafka=self._kafka)

    @cached_property
    def client(self) -> "Client":
        from ..client import Client

        return Client(self.settings, note=self.note, flags=store_flag(self.store_option))

    def app(self, ref: str) -> "StoredApp":
        """Return the app of a name or ref, without checking that it exists."""
        return self.client.unchecked_app(name_of_app(ref))

    def stage(self, text: str) -> "tuple[StoredApp, str]":
        from ..client.backends import split_stage_name

        app, stage = split_stage_name(text)
        return self.app(app), stage

    def table(self, text: str, key: Sequence[str] = ()) -> "tuple[StoredApp, str]":
        from ..client.backends import split_stage_name

        check_names_table(text, key)
        app, table = split_stage_name(text, "table")
        return self.app(app), table

    def prompt_for_name(self, error: Protected) -> str:
        """Ask the user for the name of a protected app. Without a terminal, raises `error`."""
        if not (sys.stdin.isatty() and is_terminal(stderr=True)):
            raise error
        self.note(error.message)
        return str(typer.prompt("type the app's name to confirm", err=True)).strip()

    def close(self) -> None:
        if "client" in self.__dict__:
            self.client.close()


def name_of_app(ref: str) -> str:
    return ref.partition("@")[0].partition("/")[0]


def check_names_table(text: str, key: Sequence[str]) -> None:
    """Raise `Usage` if a key is given, but `text` names no table.

    The hint suggests the key's first word as the table.
    """
    app, at, moment = text.partition("@")
    if "/" not in app and key:
        table, *values = key
        corrected = " ".join([f"{app}/{table}{at}{moment}", *values]) if values else f"{app}/TABLE{at}{moment} {table}"
        raise Usage(f"{text!r} names no table; expected APP/TABLE and then the key", hint=f"write {corrected}")


_PROGRESS_S = 1.0


def throttle(progress: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that forwards at most one progress line per second, and none in the first second."""
    last_s = runtime.monotonic()

    def tell(line: str) -> None:
        nonlocal last_s
        if runtime.monotonic() - last_s > _PROGRESS_S:
            last_s = runtime.monotonic()
            progress(line)

    return tell


def group(explanation: str = "", *examples: str) -> typer.Typer:
    """Return a typer app for a group of verbs.

    Without an explanation, the group is also a verb, which `verb(parent=…, is_group_command=True)` declares.
    """
    if not explanation:
        metavar = "| COMMAND [ARGS]..."
        return typer.Typer(cls=VerbGroup, add_completion=False, no_args_is_help=True, subcommand_metavar=metavar)
    app = typer.Typer(cls=Group, add_completion=False, no_args_is_help=True)
    app.callback(help=explanation, epilog=options.examples(*examples))(lambda: None)
    return app


_LAST_OPTIONS = {"yes_really": 2, "dry_run": 3}


def verb(
    *examples: str,
    parent: typer.Typer | None = None,
    name: str | None = None,
    is_group_command: bool = False,
    store: bool = True,
    kafka: bool = False,
    changes: bool = False,
    runs_long: bool = False,
    declared_first: bool = False,
) -> Callable[[Callable[..., None]], typer.Typer]:
    """Make a command from a function whose first parameter is its `Session`. Returns the typer app.

    The command gets an option for each parameter of a declaration (`**options: Unpack[…]`), listed after the function's
    own options unless `declared_first` is set. The session becomes the shared options: --json; --store and --kafka with
    `store` and `kafka`; --message with `changes`, for the log of operations; --log-format with `runs_long`. If the
    function has a parameter `yes_really` and the app is protected, the user is asked for the app's name, and the
    function is called a second time with that name. The help ends with `examples`. `parent` is the group that the
    command belongs to. `is_group_command` makes it the group's own command. `name` overrides the function's name.
    """
    app = parent or typer.Typer(add_completion=False)

    def place(parameter: inspect.Parameter) -> int:
        is_declared = param_of(parameter) is not None
        return _LAST_OPTIONS.get(parameter.name, int(is_declared != declared_first))

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
            restore_plugins()
            set_log_format(log_format)
            own = {name: options.convert_value(by_name[name], value) for name, value in own.items()}
            with closing(Session(store, kafka, message, as_json=as_json)) as session, session.message_context():
                try:
                    body(session, **own)
                except Protected as error:
                    if own.get("yes_really", "…"):
                        raise  # the name was already given, or the verb has no parameter for it
                    body(session, **own | {"yes_really": session.prompt_for_name(error)})

        keyword = inspect.Parameter.KEYWORD_ONLY
        by_name = {parameter.name: parameter for parameter in sorted(all_parameters(body), key=place)}
        del by_name["session"]
        parameters = [options.option_for(parameter).replace(kind=keyword) for parameter in by_name.values()]
        if store:
            parameters.append(inspect.Parameter("store", keyword, default=options.STORE, annotation=str | None))
        if kafka:
            parameters.append(inspect.Parameter("kafka", keyword, default=options.KAFKA, annotation=str | None))
        if changes:
            parameters.append(inspect.Parameter("message", keyword, default=options.MESSAGE, annotation=str))
        if runs_long:
            parameters.append(
                inspect.Parameter("log_format", keyword, default=options.LOG_FORMAT, annotation=LogFormat)
            )
        parameters.append(inspect.Parameter("as_json", keyword, default=options.JSON, annotation=bool))
        command.__doc__ = body.__doc__ or declaration_of(body).__doc__
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        epilog = options.examples(*examples)
        if is_group_command:
            app.callback(invoke_without_command=True, epilog=epilog)(command)
        else:
            app.command(name or body.__name__, cls=Verb, epilog=epilog)(command)
        return app

    return register


_RETRY_S = 5.0


def repeat_when_due(
    session: Session,
    stop: "StopEvent",
    due_ms: Callable[[], int],
    action: Callable[[], object],
    *,
    fatal_errors: tuple[type[SlackwaterError], ...] = (),
) -> None:
    """Call `action` whenever it is due, until a stop is requested.

    Prints an error once and repeats the call, since the store may come back. Raises only errors of the types in
    `fatal_errors`.
    """
    last_error = ""
    while not stop.wait(max(0.0, (due_ms() - instants.now_ms()) / 1_000)):
        try:
            action()
            last_error = ""
        except SlackwaterError as error:
            if isinstance(error, fatal_errors):
                raise
            if error.message != last_error:
                session.show_error(error)
                session.note(f"trying again every {_RETRY_S:g} s")
            last_error = error.message
            stop.wait(_RETRY_S)
