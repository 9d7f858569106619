"""The clone in which a program is tried: what an earlier call has left of it goes first, and at the end it goes again.

Killed anywhere, the same call begins anew. Until then the clone is an app like any other, or none; what is left of one
that was being removed is none. Spark and Kafka are not asked for here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from ...errors import Refused
from ...keep.clone.clone import clone
from ...keep.clone.first_versions import Channels
from ...keep.clone.plan import Terms
from ...keep.maintain.removal import discard
from ...moments.cut.graph import Cut
from ...moments.status.lag import lapsed
from ...moments.take.remove import remove_pins_without_clone
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps


@dataclass(frozen=True, slots=True)
class ScratchClone:
    """One clone of a moment, in the store of its source."""

    store: ObjectStore
    ref: str
    """The moment as it was said,"""
    start: Cut
    """and what it named then."""
    name: str
    terms: Terms
    channels: Channels
    by: str
    outside: Callable[[], None]
    """Removes what it has outside of the store: topics, and groups."""
    pause: Callable[[], None]
    """Called until signs of life of a runner that was killed are old."""

    @contextmanager
    def there(self, ending: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """Inside, it is there, made anew; it goes inside what `ending` gives. Raises as `drop` and `clone`."""
        self.drop()
        try:
            self.make(noted=False)
            yield
        finally:
            with ending():
                self.drop()

    def make(self, *, noted: bool) -> None:
        """Make it, or finish making it. Its source's log of operations tells of it if it is `noted`."""
        clone(
            self.store,
            self.ref,
            self.name,
            at=self.start,
            terms=self.terms,
            channels=self.channels,
            by=self.by,
            noted=noted,
        )

    def drop(self) -> None:
        """Remove it, whatever an earlier call has left of it, and its pin. Killed amidst, the next call does.

        Raises `Refused` where the app of that name is another one, or a runner has it.
        """
        source = self.start.app
        info = apps.find_app(self.store, self.name)
        if info is not None and (info.origin is None or info.origin.app != source):
            raise Refused(f"app {self.name!r} is none of a trial of {source}, which would have that name")
        if not lapsed(self.store, self.name, self.pause):
            raise Refused(
                f"the same trial of {source} is under way: a runner has its clone, {self.name}",
                hint="wait until that has ended",
            )
        discard(self.store, self.name)
        remove_pins_without_clone(self.store, source, self.name, "")
        self.outside()
