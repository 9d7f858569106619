"""Set-up of Spark's Python worker before its first task."""

import signal

from slackwater.pipeline.source.worker import configure_worker


def test_configure_worker_leaves_signal_handlers_of_other_processes_alone() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    configure_worker()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
