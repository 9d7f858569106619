"""A store whose clock tests turn, for what depends on the age of objects."""

from collections.abc import Iterator

from slackwater.store.memory import MemoryStore
from slackwater.store.objects import ObjectInfo

__all__ = ["HOUR_MS", "AgingStore"]

HOUR_MS = 3_600_000


class AgingStore(MemoryStore):
    """Objects in memory, under a clock that only moves when it is told to."""

    def __init__(self, clock_ms: int = 1_735_689_600_000) -> None:
        super().__init__()
        self.clock_ms = clock_ms
        self._written_ms: dict[str, int] = {}

    def _write(self, key: str, data: bytes) -> None:
        super()._write(key, data)
        self._written_ms[key] = self.clock_ms

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(prefix, start_after):
            yield info._replace(modified_ms=self._written_ms[info.key])
