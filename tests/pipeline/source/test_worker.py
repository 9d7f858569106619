"""Set-up of a Spark Python worker before its first task."""

import signal

from slackwater.pipeline.source.worker import configure_worker


def test_a_process_that_is_no_worker_of_spark_still_hears_ctrl_c() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    configure_worker()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
