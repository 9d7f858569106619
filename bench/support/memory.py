"""Peak memory of Spark's Python workers, found by polling all child processes.

Mapped SSTs are in the page cache, which the kernel can reclaim at any time. Until then, they count as resident in each
worker that has read them. There are therefore two figures: all resident memory (RSS), and the worker's own (RSS without
mapped files).
"""

from __future__ import annotations

import threading
from typing import Self

import psutil

from .side import PEER

_LOOK_S = 0.1
_SEARCH_EVERY = 5
"""Number of polls between two searches for new processes."""


class Workers:
    """Records peaks, in bytes, while `with Workers() as workers:` runs.

    They can be read during the block and after it.
    """

    def __init__(self) -> None:
        self.resident = 0
        self.own = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        self._known: dict[psutil.Process, bool] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        looks = 0
        workers: list[psutil.Process] = []
        while not self._stop.wait(_LOOK_S):
            if looks % _SEARCH_EVERY == 0:
                workers = [process for process in psutil.Process().children(recursive=True) if self._is_ours(process)]
            looks += 1
            for worker in workers:
                try:
                    memory = worker.memory_info()
                except psutil.Error:
                    continue
                self.resident = max(self.resident, memory.rss)
                # Linux reports mapped memory; on other systems all memory counts as the worker's own.
                self.own = max(self.own, memory.rss - getattr(memory, "shared", 0))

    def _is_ours(self, process: psutil.Process) -> bool:
        """Return True if the process is a Python worker of our executors, or the daemon that forks them."""
        if process not in self._known:
            try:
                self._known[process] = "pyspark.worker" in process.cmdline() and PEER not in process.environ()
            except psutil.Error:
                return False
        return self._known[process]
