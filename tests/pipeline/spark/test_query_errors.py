"""What stopped a query, in a sentence."""

import pytest
from slackwater.pipeline.spark.user_errors import translate

AROUND = "Py4JJavaError: An error occurred while calling o1.collectToPython.\n: org.apache.spark.SparkException: {}\n"


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ("Python worker exited unexpectedly (crashed): \n", "was killed in the middle of a batch", "want of memory"),
        (
            "Python worker exited unexpectedly (crashed): Fatal Python error: Aborted\n\nCurrent thread:",
            "crashed: Aborted",
            "SLACKWATER_DEBUG=1",
        ),
        ("Python worker exited unexpectedly (crashed)\nFatal Python error: Aborted\n", "crashed: Aborted", "run again"),
        ("Python worker failed to connect back.", "did not come up in time", "too busy"),
    ],
)
def test_a_worker_that_is_gone_without_a_word_is_told_as_that(text: str, told: str, hint: str) -> None:
    error = translate("legs", AROUND.format(text))
    assert str(error).startswith("stage 'legs' stopped: ")
    assert told in str(error)
    assert hint in error.hint
    assert "nothing is lost" in error.hint


@pytest.mark.parametrize("words", ["the branch is closed", "'Python worker exited unexpectedly' is no number"])
def test_what_the_program_raises_is_told_in_its_own_words(words: str) -> None:
    text = AROUND.format("Job aborted") + f"  ValueError: {words}\n"
    assert str(translate("legs", text)) == f"stage 'legs' stopped: ValueError: {words}"
