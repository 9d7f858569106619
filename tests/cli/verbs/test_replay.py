"""`slackwater replay` on the command line: the parts that need no Spark."""

from pathlib import Path

import pytest

from tests.cli.verbs.calling import slackwater

pytestmark = pytest.mark.usefixtures("isolated", "app")


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("flights@v3",), 2, "names no stage; expected APP/STAGE"),
        (("flights/carrier@v3",), 1, "the nearest: carriers"),
        (("flights/carriers@v99",), 1, "v99"),
        (("flights/legs@v3", "UA"), 2, "stage 'legs' has no table"),
        (("flights/carriers@v3", "UA", "AA"), 2, "found 2 values"),
        (("flights/carriers@v3",), 2, "add --code FILE, the program that ran, or set it under [programs]"),
        (("flights/carriers@v3", "--code", __file__), 2, "no Kafka configured"),
        (("flights/carriers@v3", "--bundle", "case.tar"), 2, "expected a name that ends with .zip, found case.tar"),
        (("case.zip", "UA"), 2, "case.zip is a bundle, which takes neither KEY nor --bundle"),
        (("case.zip", "--bundle", "other.zip"), 2, "case.zip is a bundle, which takes neither KEY nor --bundle"),
        (("case.zip",), 1, "case.zip cannot be read: No such file"),
    ],
)
def test_a_replay_that_is_not_possible_is_refused_before_spark_starts(
    words: tuple[str, ...], code: int, expected: str
) -> None:
    result = slackwater("replay", *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert expected in result.stderr


def test_the_error_for_a_zip_that_is_no_bundle_says_so(tmp_path: Path) -> None:
    (tmp_path / "case.zip").write_bytes(b"PK")
    result = slackwater("replay", "case.zip")
    assert result.exit_code == 1
    assert "case.zip is not a valid bundle" in result.stderr
