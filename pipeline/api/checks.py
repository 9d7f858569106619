"""How the stages of an app hang together, and what is wrong with one that is being declared."""

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import get_args

from ...errors import NotFound, Refused, Usage
from ...store.versions.aside import REJECTED, table_name
from ...store.versions.keys import check_topic
from .sink import FunctionSink, TopicSink, internal_topic
from .stage import OnError, Stage
from .table import DEFAULT_TABLE
from .topic import Repartition, Topic

Stages = Mapping[str, Stage]
"""The stages of an app as far as they are declared, by name."""


def topics(stages: Stages) -> frozenset[str]:
    """Names of the users' topics that are read."""
    return frozenset(one.name for stage in stages.values() for one in stage.reads if isinstance(one, Topic))


def written(stages: Stages) -> dict[str, tuple[Stage, Repartition]]:
    """The repartition topics that stages write, by name, each with its writer."""
    return {output.name: (stage, output) for stage in stages.values() for output in stage.repartitions}


def find_channel(
    stages: Stages, channel: str, hint: str = "declare the stage that writes it"
) -> tuple[Stage, Repartition]:
    """The writer of a repartition topic, and the topic. Raises `NotFound`, with the hint."""
    found = written(stages)
    if channel not in found:
        hint = f"{hint}; a Kafka topic is read as slackwater.topic({channel!r})"
        raise NotFound("repartition topic", channel, found, hint=hint)
    return found[channel]


def upstream(stages: Stages) -> TopologicalSorter[str]:
    """The stages' names, each after those of the stages that it reads."""
    writers = {channel: stage.name for channel, (stage, _) in written(stages).items()}
    return TopologicalSorter(
        {name: [writers[channel] for channel in stage.channels if channel in writers] for name, stage in stages.items()}
    )


def key_of(stage: Stage, stages: Stages) -> tuple[str, ...]:
    """The columns that key a stage's state: its own `key`, else that of the channels it reads.

    Raises:
        Usage: There is none, or the channels have different ones, so that rows that belong together would not come
            together.
        NotFound: No stage writes one of the channels.
    """
    if stage.key:
        return stage.key
    for one in stage.reads:
        if isinstance(one, Topic):
            raise Usage(
                f"stage {stage.name!r} keeps state but has no key: it reads the topic {one.name!r}, which has none",
                hint="say key=[...] with the columns that identify a row of its table",
            )
    keys = {name: find_channel(stages, name)[1].key for name in stage.channels}
    if len(set(keys.values())) > 1:
        shown = ", ".join(f"{name!r} by ({', '.join(key)})" for name, key in keys.items())
        raise Usage(
            f"stage {stage.name!r} keeps state over inputs that are keyed differently: {shown}",
            hint="key these repartition topics by the same columns, or say key=[...] with columns that each has",
        )
    return next(iter(keys.values()))


def check_rejects(stage: str, on_error: str, max_rejected: int | None, rejects: str | None) -> None:
    """Raise `Usage` where what becomes of failing records is said in a way that contradicts itself."""
    if on_error not in get_args(OnError):
        raise Usage(f'stage {stage!r}: on_error is {on_error!r}; expected "stop" or "reject"')
    if on_error == "stop" and (max_rejected is not None or rejects is not None):
        knob = "max_rejected" if max_rejected is not None else "rejects"
        raise Usage(f"stage {stage!r} has {knob}= and rejects nothing", hint='say on_error="reject", or leave it out')
    if rejects is not None:
        check_topic(rejects)


def check_stage(stage: Stage) -> None:
    """See that a stage makes sense by itself.

    Raises:
        Usage: It contradicts itself.
        Refused: It would do nothing.
    """
    _check_reads(stage)
    _check_writes(stage)
    if len(set(stage.key)) != len(stage.key):
        raise Usage(f"stage {stage.name!r}: key is {stage.key!r}; expected different column names")
    if stage.table is not DEFAULT_TABLE and stage.state is None:
        raise Usage(f"stage {stage.name!r} has table= and keeps no state, so it has no table")
    if stage.event_time.emits == "final" and (stage.state is None or not stage.emits_to):
        lacks = "keeps no state" if stage.state is None else "writes nothing"
        raise Usage(f'stage {stage.name!r} has event_time(emits="final") and {lacks}')
    if stage.state is None and not stage.writes:
        raise Refused(
            f"stage {stage.name!r} neither keeps state nor writes a topic, so it would do nothing",
            hint="give it state= or writes=",
        )


def check_beside(stage: Stage, app: str, stages: Stages) -> None:
    """See that a stage fits an app's other ones.

    Raises:
        Usage: Two stages or tables have one name, a topic has two writers, or rejected records would come round.
        Refused: Records would go round for ever.
    """
    if stage.name in stages:
        raise Usage(f"app {app!r} has two stages named {stage.name!r}; give one another name=")
    for channel in stage.repartitions:
        if channel.name in written(stages):
            raise Usage(f"repartition topic {channel.name!r} has two writers; one stage writes a topic")
    for sink in stage.sinks:
        internal_topic(app, stage.name, sink.name)
    together = {**stages, stage.name: stage}
    _check_rejected(app, together)
    _check_circles(stage, app, together)


def _check_reads(stage: Stage) -> None:
    for one in stage.reads:
        if not isinstance(one, Topic | str):
            raise Usage(
                f"stage {stage.name!r} reads {one!r}; expected a slackwater.topic(...), a "
                "slackwater.repartition(...) or the name of one, or several of them"
            )
    if not stage.reads or len(stage.inputs) != len(stage.reads):
        names = ", ".join(repr(one.name if isinstance(one, Topic) else one) for one in stage.reads) or "nothing"
        raise Usage(f"stage {stage.name!r} reads {names}; expected one or more inputs of different names")


def _check_writes(stage: Stage) -> None:
    for one in stage.writes:
        if not isinstance(one, Repartition | TopicSink | FunctionSink):
            raise Usage(
                f"stage {stage.name!r} writes {one!r}; expected a slackwater.repartition(...), a slackwater.sink(...) "
                "or a slackwater.foreach_version(...), or several of them"
            )
    names = [one.name for one in stage.writes]
    for name in names:
        if names.count(name) > 1:
            raise Usage(f"stage {stage.name!r} writes {name!r} twice; expected different names")


def _check_rejected(app: str, stages: Stages) -> None:
    """Refuse a stage named as the table of another one's rejected records, and a topic for these that is read."""
    for each in stages.values():
        table = table_name(each.name, REJECTED)
        if each.on_error == "reject" and table in stages:
            raise Usage(f"stage {table!r} has the name of the table of what {each.name!r} rejects")
        if each.rejects in topics(stages):
            raise Usage(
                f"topic {each.rejects!r} is for rejected records, and app {app!r} reads it",
                hint="what is rejected would come round again: read it in another app",
            )


def _check_circles(stage: Stage, app: str, stages: Stages) -> None:
    published = {one.name for each in stages.values() for one in each.sinks if one.kind == "topic"}
    for name in sorted(published & topics(stages)):
        raise Refused(
            f"app {app!r} reads the topic {name!r}, and its sink publishes there: records would go round for ever",
            hint="what goes from stage to stage is a slackwater.repartition(...)",
        )
    try:
        upstream(stages).prepare()
    except CycleError as error:
        raise Refused(
            f"stage {stage.name!r} closes a circle: {' -> '.join(error.args[1])}",
            hint="records would go round for ever, and no snapshot would end; stages read only what is before them",
        ) from None
