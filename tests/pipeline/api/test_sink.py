"""Declarations of sinks in programs."""

from collections.abc import Callable
from typing import Any

import pytest
import slackwater as sw
from slackwater.errors import Refused, SlackwaterError, Usage
from slackwater.snapshot.cut.kafka_topics import internal_topic


def function(app: str, stage: str, version: int, rows: Any) -> None:
    """Do nothing."""


def declare(writes: Any, *, app: str = "a") -> sw.App:
    made = sw.App(app)
    made.stage(reads=sw.topic("in"), writes=writes, name="s")(lambda raw: raw)
    return made


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: sw.sink("not a topic"), "topic name 'not a topic' is not usable"),
        (lambda: sw.sink(".."), "Kafka has no such topic"),
        (lambda: sw.sink("t", key=["a", "a"]), "which names a column twice"),
        (lambda: sw.sink("t", value="avro"), "value='avro' needs registry="),
        (lambda: sw.sink("t", registry="http://r:1"), "value='json' has no use for registry="),
        (lambda: sw.sink("t", subject="s"), "subject= is for value='avro'"),
        (lambda: sw.foreach_version(lambda *_: None), None),
        (lambda: sw.foreach_version(function, name="No"), "foreach_version name 'No' is not usable"),
        (lambda: declare([sw.sink("t"), sw.sink("t")]), "writes 't' twice"),
        (lambda: declare([sw.repartition("t", "k"), sw.sink("t")]), "writes 't' twice"),
        (lambda: declare(sw.sink("x" * 249)), "is not usable: expected a topic's name"),
        (lambda: declare([sw.topic("t")]), "expected a slackwater.repartition"),
    ],
)
def test_invalid_declarations_of_sinks_are_refused(make: Callable[[], object], said: str | None) -> None:
    if said is None:
        make()
    else:
        with pytest.raises(Usage, match=said.replace("(", r"\(")):
            make()


def test_a_topic_that_the_app_reads_cannot_be_its_sink() -> None:
    with pytest.raises(Refused, match="app 'a' reads the topic 'in', and its sink publishes there"):
        declare(sw.sink("in"))
    app = declare(sw.sink("out"))
    with pytest.raises(SlackwaterError, match="reads the topic 'out'"):
        app.stage(reads=sw.topic("out"), writes=sw.sink("elsewhere"), name="other")(lambda raw: raw)


def test_a_stage_can_have_channels_and_sinks() -> None:
    app = declare([sw.repartition("c", "k"), sw.sink("t"), sw.foreach_version(function)])
    stage = app.stages["s"]
    assert [one.name for one in stage.writes] == ["c", "t", "function"]
    assert [one.name for one in stage.repartitions] == ["c"]
    assert [(one.name, one.kind) for one in stage.sinks] == [("t", "topic"), ("function", "function")]
    assert internal_topic("a", "s", "t") == "a-s-t-sink"
    # A sink may have the name of another stage's repartition topic: these are different topics.
    app.stage(reads="c", writes=sw.sink("c"), name="reader")(lambda rows: rows)
