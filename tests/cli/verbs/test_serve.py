"""`slackwater serve` and `slackwater mcp`: what is refused before anything listens."""

import pytest

from .calling import slackwater


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("serve", "--values"), "give --mcp with it"),
        (("serve", "--mcp", "--code", "flights"), "APP=FILE"),
        (("mcp", "--code", "flights=nothing.py"), "there is no such file"),
        (("mcp", "--code", "flights=nothing.py:rows"), "there is no such file"),
        (("serve", "--client-ca", __file__), "--certificate"),
    ],
)
def test_options_that_do_not_go_together(isolated: None, words: tuple[str, ...], said: str) -> None:
    result = slackwater(*words)
    assert result.exit_code == (1 if "no such file" in said else 2), result.output
    assert said in result.stderr


def test_a_token_names_verbs_that_there_are(isolated: None) -> None:
    result = slackwater("token", "add", "x", "--app", "*", "--verb", "bisct")
    assert result.exit_code == 2
    assert "did you mean" in result.stderr or "bisect" in result.stderr
