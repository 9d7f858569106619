"""The published position of a sink never goes back."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import published
from slackwater.store.versions.manifest import Sink
from slackwater.store.versions.published import PublishedPosition

from tests.support.manifests import manifest

HEAD = replace(manifest(9), sinks={"alerts": Sink("internal", 90, since=3, rows=1, sent=70)})


def at(version: int) -> PublishedPosition:
    return PublishedPosition(version, 10 * version, 7 * version)


@given(st.lists(st.integers(3, 9), max_size=8), st.data())
def test_the_published_position_is_the_newest_that_anyone_wrote(versions: list[int], data: st.DataObject) -> None:
    store, known = MemoryStore(), dict[str, PublishedPosition]()
    for version in versions:
        # Publishers know the places that they noted themselves; one of them may have slept for long.
        who = data.draw(st.sampled_from(("one", "other")))
        if version >= known.get(who, at(1)).version:
            published.write_position(store, HEAD, "alerts", at(version), known.get(who))
            known[who] = at(version)
    newest = max((place for place in known.values()), default=None)
    assert published.newest(store, HEAD, "alerts") == newest
    assert published.read_positions(store, HEAD) == {"alerts": newest}
    assert published.first_needed_versions(store, HEAD) == {"alerts": newest.version if newest else 3}
    assert published.unpublished_rows(HEAD.sinks["alerts"], newest) == 70 - (newest.rows if newest else 0)


def test_positions_of_an_earlier_sink_of_the_same_name_are_ignored() -> None:
    store = MemoryStore()
    published.write_position(store, HEAD, "alerts", at(2), None)
    assert published.newest(store, HEAD, "alerts") is None
    assert published.first_needed_versions(store, HEAD) == {"alerts": 3}
