"""Untrusted text on a terminal: only visible characters, on the line to which the text belongs."""

import ast
import json
import logging
import re
import sys
import unicodedata
from io import StringIO

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.cli import main, terminal
from slackwater.client.show import values
from slackwater.client.show.document import TableBlock, Title
from slackwater.client.show.shown import Result
from slackwater.common.printable import escaped_in_json, printable
from slackwater.errors import Refused
from slackwater.pipeline.spark.jvm import _escape_line as shown_of_spark
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import SnapshotRequest
from slackwater.snapshot.take.audit_log import record_operation
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.store.objects.open import open_store
from slackwater.store.versions import history, keys
from typer.testing import CliRunner

from tests.models.profiles import scaled
from tests.support.histories import Flight, FlightsApp, Kafka, flights
from tests.support.hostile import as_it_is
from tests.support.static import calls, modules

ID = "01K00000000000000000000000"
HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
FORGED = "a\nhint: run rm -rf\r\x1b]0;title\x07\x1b[2J\u202eevil\u2066\x85hint: b\u2028hint: c\u200bd\ud800[red]e[/red]"
"""Hostile name that a user may give something."""

HOSTILE = st.text(
    st.one_of(
        st.characters(categories=["Cc", "Cf", "Zl", "Zp"]),
        st.sampled_from("\n\r\x1b\x9b\x07\u202e\u2066\u200b\u2028\x85[]<>:/'\"\\"),
        st.characters(categories=["L", "So", "Nd"]),
    ),
    min_size=1,
    max_size=12,
)


def unseen(text: str) -> list[str]:
    """Return the characters that a terminal would interpret or not show, except our own line breaks."""
    return [c for c in text if c != "\n" and unicodedata.category(c) in HIDDEN and c != "\u200d"]


@given(st.text(st.characters()) | HOSTILE)
def test_printable_returns_one_line_of_visible_characters(text: str) -> None:
    shown = printable(text)
    assert unseen(shown) == []
    assert len(shown.splitlines()) <= 1
    shown.encode()
    if text.isprintable() and text.isascii():
        assert shown == text


def test_every_control_and_format_character_of_unicode_is_escaped() -> None:
    hidden = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in HIDDEN]
    assert [c for c in hidden if not printable(c).startswith("\\")] == []
    # Unicode classifies fillers and variation selectors as letters and marks, but they are invisible.
    assert [c for c in "\u034f\u115f\u1160\u3164\ufe0f\uffa0\U000e0100" if not printable(c).startswith("\\")] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nhint: b", "a\\nhint: b"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\u202eevil", "\\u202eevil"),
        ("admin\u200d", "admin\\u200d"),
        ("ad\u200dmin", "ad\\u200dmin"),
        ("a\ufe0fb", "a\\ufe0fb"),
        ("x\U000e0041", "x\\U000e0041"),
        ("\udcff", "\\udcff"),
        ("C:\\new", "C:\\new"),
        ("👩‍🚒 👩🏽‍🚒 ❤️‍🔥 1️⃣ ✈️ é 日本 عربي", "👩‍🚒 👩🏽‍🚒 ❤️‍🔥 1️⃣ ✈️ é 日本 عربي"),
    ],
)
def test_which_characters_are_escaped_and_which_stay(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.dictionaries(HOSTILE, st.lists(st.text(st.characters(exclude_categories=[])) | HOSTILE)))
def test_json_keeps_the_values_but_escapes_control_characters(data: dict[str, list[str]]) -> None:
    document = escaped_in_json(json.dumps(data, ensure_ascii=False))
    assert json.loads(document) == data
    assert unseen(document) == []
    document.encode()


class Terminal(StringIO):
    def __init__(self, *, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


OURS = re.compile(r"\x1b\[[0-9;]*[mAKHJ]|\x1b\[\?25[lh]|\r|\x1b\[2K")
"""Sequences that rich and we send to a terminal: colours and line positions."""


@pytest.mark.parametrize("tty", [False, True])
@scaled(40)
@given(text=HOSTILE, json_too=st.booleans())
def test_no_renderer_prints_untrusted_text_unescaped(tty: bool, text: str, json_too: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        out, err = Terminal(tty=tty), Terminal(tty=tty)
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        patch.setenv("COLUMNS", "200")
        patch.setenv("TERM", "xterm")
        for each in (terminal.Printer(as_json=False), *([terminal.Printer(as_json=True)] if json_too else [])):
            each.show(
                Result(
                    {text: text},
                    text,
                    Title(text),
                    TableBlock.from_rows((text, f">{text}"), [(text, text)]),
                    notes=[text],
                )
            )
            each.show(Result(None, values.grid(pa.table({text: [text], f"<{text}": [1]}))))
            each.note(text)
            each.show_error(Refused(f"{text} happened", quoted=f"{text}\n{text}", hint=text))
            each.show_error(ValueError(text))
            with each.progress() as tell:
                tell(text, text, TableBlock.from_rows((text,), [(text,)]))
            with each.live() as show:
                show(Result({}, text, TableBlock.from_rows((text,), [(text,)])))
        terminal.print_traceback(ValueError(text))
        for shown in (out.getvalue(), err.getvalue()):
            assert unseen(OURS.sub("", shown) if tty else shown) == []


def test_quoted_text_cannot_imitate_a_line_of_ours() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", err := Terminal(tty=False))
        terminal.Printer(as_json=False).show_error(Refused("no", quoted="LINE 1\nhint: forged\n  x", hint="real"))
    assert err.getvalue() == "error: no\n  | LINE 1\n  | hint: forged\n  |   x\nhint: real\n"


def test_rich_finds_no_markup_in_data() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out := Terminal(tty=True))
        patch.setenv("NO_COLOR", "1")
        terminal.Printer(as_json=False).show(
            Result(None, "[red]x[/red]", TableBlock.from_rows(("[b]h[/b]",), [("[link=x]y[/link]",)]))
        )
    for markup in ("[red]x[/red]", "[b]h[/b]", "[link=x]y[/link]"):
        assert markup in out.getvalue()


def test_log_records_and_spark_lines_are_escaped_too(capsys: pytest.CaptureFixture[str]) -> None:
    handler = terminal.NoteHandler(terminal.print_note, quoting=True)
    logger = logging.Logger("strangers")
    logger.addHandler(handler)
    logger.warning("topic %s is away", FORGED)
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("it failed")
    said = capsys.readouterr().err
    assert unseen(said) == []
    assert not [line for line in said.splitlines() if line.startswith("hint")]
    relayed = shown_of_spark(b"\tat \x1b[31mred \xff\xc2\x9b\r\n").decode()
    assert relayed == "    at \\x1b[31mred \\xff\\x9b\n"


# --- through the verbs ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a store in which all user-chosen text is `FORGED`."""
    root = str(tmp_path_factory.mktemp("hostile") / "store")
    store = open_store(root)
    text = FORGED.encode(errors="ignore").decode()
    app = FlightsApp(store, Kafka())
    app.run(flights(20))
    app.run([Flight(text, text, 5000)])
    app.send(*flights(5))
    app.step("legs")
    for stage in ("legs", "carriers"):
        head = app.heads[stage]
        app.commit(replace(history.read(store, app.name, stage, head.version), version=head.version + 1, by=text))
    pin_cut(store, resolve(store, app.name, now_ms=app.clock.now_ms), "kept", by=text, reader=app.kafka)
    record_operation(store, app.name, f"snapshot {text}", text, text)
    store.put(keys.json_object(keys.requests(app.name), ID), as_it_is(SnapshotRequest(ID, text, 5, text)))
    return root


VERBS: tuple[tuple[str, ...], ...] = (
    ("status",),
    ("status", "flights"),
    ("status", "flights", "--cost"),
    ("log", "flights"),
    ("log", "flights", "--operations"),
    ("snapshot", "list", "flights"),
    ("snapshot", "show", "flights", "kept"),
    ("snapshot", "show", "flights", "{}"),
    ("snapshot", "rm", "flights", "{}", "--dry-run"),
    ("snapshot", "take", "flights", "{}", "--instant"),
    ("verify", "flights"),
    ("verify", "flights@kept", "--deep"),
    ("verify", "flights@{}"),
    ("query", "flights"),
    ("query", "flights", "FROM carriers"),
    ("query", "flights@kept", "FROM inflight('by-aircraft')"),
    ("query", "flights", 'SELECT 1 AS "{}", carrier FROM carriers'),
    ("query", "flights", "SELECT error('{}')"),
    ("query", "flights", "SELECT '{}'::INTEGER"),
    ("query", "flights", "FROM {}"),
    ("query", "flights", "{}"),
    ("query", "{}"),
    ("get", "flights/carriers", "{}"),
    ("get", "flights/{}", "x"),
    ("get", "flights/carriers@{}", "x"),
    ("get", "flights", "{}", "x"),
    ("history", "flights/{}", "x"),
    ("edit", "flights/carriers@{}", "--sql", "x"),
    ("forget", "flights", "{}"),
    ("bisect", "flights", "--where", "SELECT carrier FROM carriers WHERE delay > 1000"),
    ("bisect", "flights", "--where", "SELECT '{}'"),
    ("clone", "flights", "{}", "--kafka", "127.0.0.1:1"),
    ("rescale", "flights/{}", "--partitions", "3"),
    ("rescale", "flights/carriers", "--partitions", "3", "--dry-run"),
    ("compact", "flights", "--dry-run", "--full"),
    ("compact", "flights", "--stage", "{}"),
    ("gc", "flights", "--dry-run"),
    ("gc", "flights", "--explain", "{}"),
    ("gc", "{}"),
    ("run", "{}", "--kafka", "127.0.0.1:1"),
    ("dev", "status", "--folder", "{}"),
    ("dev", "{}"),
    ("{}",),
    ("--{}",),
    ("query", "flights", "--{}"),
    ("query", "flights", "--limit", "{}"),
    ("status", "--store", "{}"),
)


def run(*words: str, **replaced: str) -> tuple[str, str]:
    result = CliRunner().invoke(main.app, words)
    assert "this is a bug" not in result.output
    return result.stdout, result.stderr


def check(words: tuple[str, ...], text: str) -> None:
    spelled = [word.replace("{}", text) for word in words]
    for each in run(*spelled):
        assert unseen(each) == []
        assert not [line for line in each.splitlines() if re.match(r"\s*hint: (run rm|b|c)", line)]


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_no_verb_prints_untrusted_text_unescaped(
    hostile: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "--store" not in words:
        monkeypatch.setenv("SLACKWATER_STORE", hostile)
    # DuckDB and argv take no lone surrogate; NUL ends an argument.
    check(words, FORGED.encode(errors="ignore").decode())


@pytest.mark.usefixtures("isolated")
@scaled(60)
@given(words=st.sampled_from([words for words in VERBS if any("{}" in word for word in words)]), text=HOSTILE)
def test_no_verb_prints_its_arguments_unescaped(hostile: str, words: tuple[str, ...], text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLACKWATER_STORE", hostile)
        # Never an allowed name, because a clone would look for Kafka.
        check(words, "\x1b" + text.replace("\x00", "0"))


def test_the_column_names_of_a_result_are_escaped(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_STORE", hostile)
    sql = 'SELECT 1 AS "\x1b]0;owned\x07", 2 AS ">b", \'x\' AS ">c"'
    out, _ = run("query", "flights", sql)
    assert out.splitlines()[0].split() == ["\\x1b]0;owned\\x07", ">b", ">c"]
    as_json, _ = run("query", "flights", sql, "--json")
    assert next(iter(json.loads(as_json)["rows"][0])) == "\x1b]0;owned\x07"
    assert unseen(as_json) == []


# --- nothing else prints ----------------------------------------------------------------------------------------------

PRINTS = {"print", "pprint", "echo", "secho", "Console", "print_exc", "print_exception", "print_stack", "Live"}
ALLOWED = {
    "cli/terminal.py",
    "cli/quick.py",  # flushes both streams before it ends the process
    "pipeline/dev/launch.py",  # a process of its own, whose stdout its parent reads
    "pipeline/spark/planner_server.py",  # a process of Spark's, which flushes its streams before it ends
}


def test_only_the_terminal_module_prints() -> None:
    found = []
    for path, tree in modules(matching=rf"\b({'|'.join(PRINTS)})\b|\bstd(out|err)\b|__stderr__"):
        if str(path) in ALLOWED:
            continue
        found += [f"{path}:{line} {name}" for name, line in calls(tree) if name in PRINTS]
        found += [
            f"{path}:{node.lineno} sys.{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and (node.value.id, node.attr) in {("sys", "stdout"), ("sys", "stderr"), ("sys", "__stderr__")}
        ]
    assert found == []
