"""Which versions could be replayed: those of which Kafka still holds all that they read."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ..cut.lineage import Window
from ..cut.moments import heads_of, stages_of


class Topics(Protocol):
    """What this needs of Kafka; `pipeline` implements it."""

    def starts(self, topic: str, /) -> tuple[int, ...] | None:
        """The first offset that Kafka holds of each partition, None when there is no such topic.

        Raises:
            Refused: the broker does not let us look.
            Unavailable: Kafka did not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """What Kafka still holds; asked once a topic."""

    topics: Topics
    _starts: dict[str, tuple[int, ...] | None] = field(default_factory=dict)

    def from_on(self, topic: str, partition: int, offset: int) -> bool:
        """Whether nothing of a partition from this offset on is gone. Raises as `Topics.starts`."""
        if topic not in self._starts:
            self._starts[topic] = self.topics.starts(topic)
        starts = self._starts[topic]
        return starts is not None and partition < len(starts) and starts[partition] <= offset

    def all_of(self, windows: Iterable[Window]) -> bool:
        """Whether Kafka holds all records of these windows. Raises as `Topics.starts`."""
        return all(self.from_on(window.topic, window.partition, window.start) for window in windows)


def unreplayable(store: ObjectStore, app: str, topics: Topics) -> dict[str, int]:
    """By stage, the last version whose input is gone from Kafka, in part at least; stages without one are left out.

    A request a topic, and manifests as a binary search over versions reads them.

    Raises:
        NotFound: there is no such app.
        Refused: the broker does not let us look.
        Unavailable: storage or Kafka did not answer.
    """
    held, found = Held(topics), {}
    for stage, head in heads_of(store, app, stages_of(store, app)).items():

        def is_gone(manifest: Manifest) -> bool:
            """Whether the version after this one read what is gone."""
            return any(
                not held.from_on(read.topic, partition, offset)
                for read in manifest.inputs.values()
                for partition, offset in enumerate(read.offsets)
            )

        last = history.newest_where(
            partial(history.read, store, app), partial(history.first_version, store, app), head, is_gone
        )
        if last is not None:
            found[stage] = min(last.version + 1, head.version)
    return found
