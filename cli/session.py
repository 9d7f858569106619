"""What every verb works with: settings, the store they name, the output; and the decorator that hands it over."""

import inspect
import shlex
from collections.abc import Callable
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from .. import instants
from ..results import formats
from ..results.document import Result
from . import options
from .output import Output, output_for

if TYPE_CHECKING:
    from ..client import Client
    from ..moments.cut.graph import Cut, Thinned
    from ..settings import Settings
    from ..store.objects.protocol import ObjectStore
    from ..store.read.cache import SstCache


class Session:
    """The options that verbs share, as what they stand for. Nothing is read or opened before it is asked for."""

    def __init__(self, output: Output, store: str | None, kafka: str | None, as_json: bool) -> None:
        self.output = output
        self.as_json = as_json
        self.said_store = store
        self._kafka = kafka

    @cached_property
    def settings(self) -> "Settings":
        """Where things are. Raises `Usage`."""
        from ..settings import load

        return load(store=self.said_store, kafka=self._kafka)

    @cached_property
    def client(self) -> "Client":
        """The Python API over the store that the settings name. Raises `Usage`."""
        from ..client import Client

        return Client(self.settings)

    @property
    def store(self) -> "ObjectStore":
        """The store that the settings name. Raises `Usage`."""
        return self.client.store

    @property
    def cache(self) -> "SstCache":
        """The local cache of SSTs, which is closed with the session."""
        return self.client.cache

    def close(self) -> None:
        """Give back open files."""
        if "client" in self.__dict__:
            self.client.close()

    @property
    def flags(self) -> str:
        """The `--store` that a command to type next needs because this one was given it; else nothing."""
        return store_flag(self.said_store)

    def show(self, result: Result) -> None:
        """The result. Raises `typer.Exit` where what was asked does not hold."""
        self.output.show(result)
        if result.failed:
            raise typer.Exit(1)

    def note(self, line: str) -> None:
        """Something worth knowing that is not the result."""
        self.output.note(line)

    def note_thinned(self, ref: str, thinned: "Thinned | None") -> None:
        """Say when gc has left another moment than `ref` asked for. Machines find `thinned_out` in the result."""
        if thinned is None:
            return
        moved_ms = thinned.answered_ms - thinned.asked_ms
        how_far = f", {formats.duration(abs(moved_ms))} {'earlier' if moved_ms < 0 else 'later'}" if moved_ms else ""
        self.note(
            f"note: {ref}: history was thinned out by gc there; answering with the moment "
            f"{instants.iso(thinned.answered_ms, 'milliseconds')}{how_far}"
        )

    def note_name(self, ref: str, name: str, then: str) -> None:
        """Say what a stage or table was called at `ref`, where that is another name."""
        if then != name:
            self.note(f"note: {name} was called {then} at {ref}")

    def cut_around(self, ref: str, done: str, store: "ObjectStore | None" = None) -> "tuple[Cut, bool]":
        """The moment that a ref names, and whether all of the app is in it; notes say what is not, or is another.

        `done` is what happens to the one stage that is left where others cannot be read; `store` is where to look, by
        default in the session's.
        """
        from ..moments.cut.resolve import resolve_around

        cut, damage = resolve_around(store or self.store, ref, now_ms=instants.now_ms())
        if damage is not None:
            self.note(f"only {', '.join(cut.stages)} is {done}, by itself: {damage.message}")
        self.note_thinned(ref, cut.thinned)
        return cut, damage is None


def store_flag(root: str | None) -> str:
    """The `--store` to type for a root; empty for None."""
    return f" --store {shlex.quote(root)}" if root else ""


def group() -> typer.Typer:
    """A verb that has verbs of its own."""
    return typer.Typer(add_completion=False, no_args_is_help=True)


class _Either(TyperGroup):
    """A verb with arguments and options, unless the first word is one of its own verbs."""

    allow_interspersed_args = True
    allow_extra_args = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] in self.commands:
            ctx.invoked_subcommand, ctx.args = args[0], args[1:]
            return args[1:]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        if ctx.invoked_subcommand is None:
            return super().invoke(ctx)
        command, words = self.commands[ctx.invoked_subcommand], f"{ctx.info_name} {ctx.invoked_subcommand}"
        # Not below this verb, whose arguments its usage would show.
        with command.make_context(words, list(ctx.args), parent=ctx.parent) as inner:
            return command.invoke(inner)


def either() -> typer.Typer:
    """A verb that also has verbs of its own: which it is, the first word says. `verb(of=…, whole=True)` is the verb."""
    return typer.Typer(
        cls=_Either, add_completion=False, no_args_is_help=True, subcommand_metavar="| COMMAND [ARGS]..."
    )


def verb(
    *examples: str,
    of: typer.Typer | None = None,
    name: str | None = None,
    whole: bool = False,
    store: bool = True,
    kafka: bool = False,
) -> Callable[[Callable[..., None]], typer.Typer]:
    """Make a command of a function whose first parameter is its `Session`.

    In place of that the command has the options that verbs share: --store, --kafka, --json. Returns the typer app.

    Args:
        examples: for the end of its help.
        of: the group that it belongs to; by itself without one.
        name: its name, where that is not the function's.
        whole: whether it is what the group itself does, `either`.
        store: whether it has --store.
        kafka: whether it has --kafka.
    """
    app = of or typer.Typer(add_completion=False)

    def register(body: Callable[..., None]) -> typer.Typer:
        shared = {"store": options.Store, "kafka": options.Kafka, "as_json": options.Json}
        wanted = {"store": store, "kafka": kafka, "as_json": True}

        def command(*, store: str | None = None, kafka: str | None = None, as_json: bool = False, **given: Any) -> None:
            with closing(Session(output_for(json=as_json), store, kafka, as_json)) as session:
                body(session, **given)

        own = inspect.signature(body).parameters.values()
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [each.replace(kind=keyword) for each in own if each.name != "session"]
        parameters += [
            inspect.Parameter(each, keyword, default=False if each == "as_json" else None, annotation=kind)
            for each, kind in shared.items()
            if wanted[each]
        ]
        command.__doc__ = body.__doc__
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        if whole:
            app.callback(invoke_without_command=True, epilog=options.examples(*examples))(command)
        else:
            app.command(name or body.__name__, epilog=options.examples(*examples))(command)
        return app

    return register
