"""How far users' topics have been read by what a version has: before these offsets it holds every record's effect."""

from collections.abc import Collection, Iterable, Mapping
from itertools import zip_longest

from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest
from .graph import Cut
from .lineage import sender_of

Offsets = dict[str, tuple[int, ...]]
"""By topic, the next offset to be read of each partition: what is before it has been read."""


def read_up_to(store: ObjectStore, cut: Cut, stages: Collection[str]) -> Offsets:
    """How far users' topics are in all of these stages of a cut, traced up through every channel.

    Of a topic that comes over several ways, the way that is furthest behind counts. Topics are left out of which nobody
    knows any more, since a sender's version was collected. A manifest for each channel, mostly one that is known.
    """
    return _least(_of(store, cut, cut.stages[stage]) for stage in stages)


def _of(store: ObjectStore, cut: Cut, reader: Manifest) -> Offsets:
    return _least(_by(store, cut, reader, name) for name in reader.inputs)


def _by(store: ObjectStore, cut: Cut, reader: Manifest, name: str) -> Offsets:
    """How far one input of a version is."""
    source = reader.inputs[name]
    if not source.upstream:
        return {source.topic: source.offsets}
    if sent := sender_of(store, reader, name, history.find):
        return _of(store, cut, sent)
    if not source.version and (sender := cut.stages.get(source.upstream)):
        # It has read nothing of what that one sent.
        return {topic: (0,) * len(offsets) for topic, offsets in _of(store, cut, sender).items()}
    return {}


def _least(found: Iterable[Mapping[str, tuple[int, ...]]]) -> Offsets:
    least: Offsets = {}
    for each in found:
        for topic, offsets in each.items():
            known = least.get(topic)
            pairs = zip_longest(known or offsets, offsets, fillvalue=0)
            least[topic] = tuple(min(one, other) for one, other in pairs)
    return least
