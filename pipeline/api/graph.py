"""How the stages of an app hang together: which reads from which, in what order, by what key."""

from collections.abc import Mapping
from graphlib import TopologicalSorter

from ...errors import NotFound, Usage
from .stage import Stage
from .topic import Repartition, Topic

Stages = Mapping[str, Stage]
"""The stages of an app as far as they are declared, by name."""


def topics(stages: Stages) -> frozenset[str]:
    """Names of the users' topics that are read."""
    return frozenset(one.name for stage in stages.values() for one in stage.reads if isinstance(one, Topic))


def written(stages: Stages) -> dict[str, tuple[Stage, Repartition]]:
    """The repartition topics that stages write, by name, each with its writer."""
    return {output.name: (stage, output) for stage in stages.values() for output in stage.repartitions}


def find(stages: Stages, channel: str, hint: str = "declare the stage that writes it") -> tuple[Stage, Repartition]:
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
    keys = {name: find(stages, name)[1].key for name in stage.channels}
    if len(set(keys.values())) > 1:
        shown = ", ".join(f"{name!r} by ({', '.join(key)})" for name, key in keys.items())
        raise Usage(
            f"stage {stage.name!r} keeps state over inputs that are keyed differently: {shown}",
            hint="key these repartition topics by the same columns, or say key=[...] with columns that each has",
        )
    return next(iter(keys.values()))
