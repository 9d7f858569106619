"""Spark's daemon of Python workers."""

import pytest
from slackwater.pipeline.run.worker_daemon import hung_up


def test_a_worker_that_spark_hung_up_on_ends_without_a_word_and_any_other_error_is_told() -> None:
    def worker(error: BaseException | None) -> int:
        if error is not None:
            raise error
        return 0

    quiet = hung_up(worker)
    assert quiet(None) == 0
    for gone in (BrokenPipeError(), ConnectionResetError(), EOFError()):
        assert quiet(gone) == 1
    with pytest.raises(OSError, match="full"):
        quiet(OSError("the disk is full"))
