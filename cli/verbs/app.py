"""`slackwater app`: what is done to a whole app."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import Refused
from ...settings import Settings, load
from .. import humane, options
from ..output import Part, output_for

if TYPE_CHECKING:
    from ...snapshot.maintain.removal import Removal, Removed

__all__ = ["app"]

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback(epilog=options.examples("slackwater app rm flights-staging --dry-run"))
def _app() -> None:
    """Remove an app wholly."""


@app.command(
    epilog=options.examples(
        "slackwater app rm flights-staging --dry-run",
        "slackwater app rm flights-staging --topics          # with its topics and consumer groups in Kafka",
    )
)
def rm(
    app_name: options.App,
    topics: Annotated[
        bool, typer.Option("--topics", help="Also its repartition topics and consumer groups in Kafka.")
    ] = False,
    fence: Annotated[bool, typer.Option("--fence", help="Also when a runner holds it: that stops.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also when clones live from it: these are damaged then.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed; change nothing.")] = False,
    store: options.Store = None,
    kafka: options.Kafka = None,
    as_json: options.Json = False,
) -> None:
    """Remove an app: its tables, its history, its snapshots.

    Nothing of it can be brought back. It is refused while a clone lives from it. Whatever interrupts it, the same
    command finishes it; the name is free after that. Topics of yours are never touched.
    """
    from ...snapshot.maintain.removal import remove_app
    from ...snapshot.take.audit_log import whoami

    settings, output = load(store=store, kafka=kafka), output_for(json=as_json)
    if topics:
        settings.kafka()  # says what is missing before anything is done
    done = remove_app(
        settings.open_store(),
        app_name,
        by=whoami(),
        now_ms=humane.now_ms(),
        fence=fence,
        force=force,
        dry_run=dry_run,
        outside=lambda removal: _remove_from_kafka(settings, removal) if topics else None,
        tell=output.note,
    )
    output.show({**asdict(done), "groups": _groups(done.removal), "dry_run": dry_run}, *_words(done, topics, dry_run))


def _remove_from_kafka(settings: Settings, removal: "Removal") -> None:
    """Raises `Unavailable`, and `Refused` where Kafka does not allow it."""
    from ...pipeline.kafka.consumer_groups import delete_groups
    from ...pipeline.kafka.topics import delete_topics

    refused = delete_topics(settings.kafka(), removal.topics)
    if refused:
        raise Refused(
            f"Kafka does not let these topics of {removal.app} be removed: {', '.join(refused)}",
            hint="remove them yourself, then say it again without --topics",
        )
    delete_groups(settings.kafka(), _groups(removal))


def _groups(removal: "Removal") -> tuple[str, ...]:
    from ...pipeline.kafka.consumer_groups import group_of

    return tuple(group_of(removal.app, stage) for stage in removal.stages)


def _words(done: "Removed", topics: bool, dry_run: bool) -> Iterator[Part]:
    removal, what = done.removal, done.contents
    if done.already:
        when = humane.when(removal.time_ms, humane.now_ms())
        yield f"{removal.app} was removed {when}, by {removal.by}: done already"
    else:
        counts = ", ".join(
            humane.plural(number, word)
            for number, word in (
                (len(removal.stages), "stage"),
                (what.versions, "version"),
                (what.ssts, "SST"),
                (what.snapshots, "snapshot"),
            )
        )
        size = f"{humane.plural(what.objects, 'object')}, {humane.size(what.bytes)}"
        yield f"{'would remove' if dry_run else 'removed'} {removal.app}: {counts}; {size}"
    left = {"topics": ", ".join(removal.topics), "consumer groups": ", ".join(_groups(removal))}
    for kind, names in left.items():
        if names and topics:
            yield f"{'would remove' if dry_run else 'removed'} from Kafka its {kind} {names}"
        elif names:
            yield f"left in Kafka are its {kind} {names}: --topics removes them"
