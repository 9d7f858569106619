"""Run an app on real data: take a snapshot, corrupt the input, bisect, clone, compare. Called by `make demo`.

The demo runs the commands that it shows. Only its progress bars use the Python API, which starts no process.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated

import duckdb
import pandas as pd
import slackwater as sw
import typer
from feed import Message, events, make_topic, message, send
from rich.console import Console
from rich.markdown import Markdown
from rich.panel import Panel
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from slackwater.client import Client
from slackwater.pipeline.dev.java import find_java

HERE = Path(__file__).parent
FOLDER = Path(".slackwater/demo")
FAULT_FROM = 200_000
EVENTS = 336_776
ORDERS = 5_000
DAY_LATE = "SELECT carrier, worst FROM carriers WHERE worst > 24 * 60"

console = Console(highlight=False, width=None if sys.stdout.isatty() else 118)


def say(title: str, text: str) -> None:
    """Print the heading of a chapter."""
    console.print()
    console.print(Panel(Markdown(text), title=f"[bold cyan]{title}", title_align="left", border_style="cyan"))


def shown(command: list[str]) -> str:
    """Return a command as a user would type it."""
    words = [word if re.fullmatch(r"[\w@=./:~,-]+", word) else f'"{word}"' for word in command]
    return " ".join(words)


def run(*command: str, quiet: bool = False, codes: tuple[int, ...] = (0,), lines: int | None = None) -> str:
    """Show a command, run it, and show its output or the first `lines` of it. Another exit code ends the demo."""
    console.print(f"\n[bold green]$[/] [bold]{shown(list(command))}[/]")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=None, text=True)
    if not quiet:
        printed = done.stdout.rstrip().splitlines()
        console.out("\n".join(printed[:lines]), highlight=False)
        if more := len(printed[lines:] if lines is not None else ()):
            console.print(f"[dim]and {more} more lines")
    if done.returncode not in codes:
        console.print(f"[red]that failed with exit code {done.returncode}; the demo stops here")
        raise SystemExit(1)
    return done.stdout


def slackwater_json(*words: str) -> object:
    """Return the JSON output of a verb."""
    return json.loads(subprocess.run(["slackwater", *words, "--json"], stdout=subprocess.PIPE, check=True).stdout)


@contextmanager
def background(*command: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in the background. At the end of the block, send it Ctrl-C."""
    console.print(f"\n[bold green]$[/] [bold]{shown(list(command))} &[/]   [dim](its lines go to {log})")
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def follow(what: str, process: subprocess.Popen[bytes], log: Path, done: Callable[[], tuple[int, int]]) -> None:
    """Show a progress bar until `done` returns (n, n). Ends the demo if there is no progress for three minutes."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(40),
        TextColumn("{task.percentage:>3.0f} %"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task(what, total=1)
        deadline, last = time.monotonic() + 180, -1
        while True:
            at, total = done()
            if at != last:
                deadline, last = time.monotonic() + 180, at
            progress.update(task, completed=at, total=max(total, 1))
            if at >= total > 0:
                return
            if process.poll() is not None or time.monotonic() > deadline:
                console.print(f"[red]the app stopped or hangs; its last lines:\n{log.read_text()[-2000:]}")
                raise SystemExit(1)
            time.sleep(0.5)


@cache
def store() -> Client:
    """Return the store of the servers that the demo has started."""
    return sw.open()


def consumed(app: str, stage: str) -> int:
    """Return the number of flights in the totals by carrier, read from the store."""
    try:
        found = store().app(app).query(f"SELECT coalesce(sum(flights), 0)::BIGINT FROM {stage}").fetchall()
    except sw.errors.NotFound:
        return 0  # no commit yet
    return int(found[0][0])


def rejected(app: str) -> int:
    """Return the number of records that the app's stages have rejected."""
    return sum(store().app(app).rejected().total.values())


@dataclass
class Story:
    """State shared by the acts: the flights, the folder of logs, and the programs in the background."""

    app: ExitStack = field(default_factory=ExitStack)
    """The running app and its feeder, which several acts observe."""
    running: subprocess.Popen[bytes] | None = None
    logs: Path = FOLDER / "logs"

    @cached_property
    def arrived(self) -> pd.DataFrame:
        flights = events()
        return flights[flights.arr_delay.notna() & flights.tailnum.notna()]

    def await_flights(self, what: str, number: int) -> None:
        """Wait until production's totals contain this number of flights."""
        assert self.running is not None  # noqa: S101  an act before it started the app
        follow(what, self.running, self.logs / "flights.log", lambda: (consumed("flights", "carriers"), number))


def feed(*words: str) -> tuple[str, ...]:
    return ("python", str(HERE / "feed.py"), *words)


def run_words(*words: str) -> tuple[str, ...]:
    return ("slackwater", "run", str(HERE / "flights.py"), *words)


def servers(story: Story) -> None:
    say(
        "1  A Kafka broker and an object store",
        "Both are real and run on this machine only, with their data under `.slackwater/demo`. "
        "What an earlier demo left is removed first.",
    )
    if FOLDER.exists():
        subprocess.run(
            ["slackwater", "dev", "down", "--purge", "--folder", str(FOLDER)], check=True, capture_output=True
        )
        shutil.rmtree(FOLDER, ignore_errors=True)
    run("slackwater", "dev", "up", "--folder", str(FOLDER))
    environment = slackwater_json("dev", "up", "--folder", str(FOLDER))
    os.environ.update(environment["environment"])  # type: ignore[index,call-overload]
    story.logs.mkdir(parents=True, exist_ok=True)


def app(story: Story) -> None:
    say(
        "2  An app on real events",
        f"The {EVENTS:,} flights that left New York in 2013, as JSON, in order of time. `examples/flights.py` is plain "
        "PySpark in three stages, joined by two repartition topics: **legs** parses, **aircraft** remembers each "
        "aircraft's last leg, **carriers** sums up by carrier. Others read the topic `knock-on`: it gets each leg that "
        "is an hour late for its aircraft's sake. We start it and let the first 200,000 flights come.",
    )
    run(*feed("--end", "80000"), quiet=True)
    command = run_words("--max-records", "20000")
    story.running = story.app.enter_context(background(*command, log=story.logs / "flights.log"))
    more = feed("--start", "80000", "--end", str(FAULT_FROM), "--rate", "10000")
    story.app.enter_context(background(*more, log=story.logs / "feed.log"))
    story.await_flights("the first flights arrive in the totals", 120_000)


def snapshot(_story: Story) -> None:
    say(
        "3  A snapshot of the running app",
        "Markers travel through the topics behind the records; each stage writes down its version when they "
        "pass. Nobody stops, nothing is copied, and all stages reflect the same flights.",
    )
    run("slackwater", "snapshot", "take", "flights", "before-release")


def fault(story: Story) -> None:
    story.await_flights("200,000 flights", int((story.arrived.index < FAULT_FROM).sum()))
    run("slackwater", "status", "flights")
    say(
        "4  A fault comes in",
        "A new release of the feeder sends United's delays in seconds instead of minutes. The events are valid; "
        "nothing fails. The totals are just wrong.",
    )
    run(*feed("--start", str(FAULT_FROM), "--fault-from", str(FAULT_FROM)), quiet=True)
    story.await_flights("the rest of the year", len(story.arrived))
    worst = (
        "SELECT carrier, flights, round(mean_delay, 1) AS mean_delay, worst FROM carriers "
        "ORDER BY mean_delay DESC LIMIT 4"
    )
    run("slackwater", "query", "flights", worst)
    console.print("\nUnited, more than two weeks late? The snapshot remembers other totals:")
    run("slackwater", "query", "flights@before-release", worst)


def search(_story: Story) -> None:
    say(
        "5  When did it go wrong, and by which records?",
        "No flight is a day late: where one is, something is wrong. That is the predicate; bisect evaluates it on "
        "consistent cuts of all stages, in a logarithmic number of them. Then the batch is replayed on a Spark of "
        "its own, and those upstream that it came from, down to the event.",
    )
    run("slackwater", "bisect", "flights", "--where", DAY_LATE, "--code", str(HERE / "flights.py"))


def reject(story: Story) -> None:
    say(
        "6  A record that nobody can read",
        'An event comes that breaks off in its middle. **legs** says `on_error="reject"`: it goes on without the '
        "record, which is in a table of its own, with its bytes and its error, until it is put through again.",
    )
    run(*feed("--start", str(EVENTS - 1), "--end", str(EVENTS), "--cut-off"), quiet=True)
    assert story.running is not None  # noqa: S101  an act before it started the app
    follow("the event is rejected", story.running, story.logs / "flights.log", lambda: (rejected("flights"), 1))
    run("slackwater", "rejected", "flights")


def staging(story: Story) -> None:
    say(
        "7  Try the repair on production's own state",
        "Staging is a clone of the snapshot: manifests that point at production's files, at production's offsets. It "
        "reads a topic with the corrected events, and runs the same program.",
    )
    run(*feed("--topic", "flights-corrected"), quiet=True)
    run("slackwater", "clone", "flights@before-release", "flights-staging", "--topic", "flights=flights-corrected")
    log = story.logs / "staging.log"
    with background(*run_words("--app", "flights-staging", "--until-caught-up"), log=log) as running:
        follow(
            "the clone reads on from the snapshot",
            running,
            log,
            lambda: (consumed("flights-staging", "carriers"), len(story.arrived)),
        )
        running.wait(60)


def alerts(_story: Story) -> None:
    say(
        "8  What others were told",
        "Each alert is in the topic once, since what is published follows the commits. What was told cannot be taken "
        "back: so the clone, which computed half a year again, told nobody. `clone --sink` would name a topic for it.",
    )
    run("python", str(HERE / "alerts.py"))


def side_by_side(story: Story) -> None:
    say("9  Production and staging, side by side", "Both are exported by the verb `query`; DuckDB joins them.")
    for ref, name in (("flights", "production"), ("flights-staging", "staging")):
        run("slackwater", "query", ref, "SELECT * FROM carriers", "--out", str(FOLDER / f"{name}.parquet"), quiet=True)
    compare(story.arrived)


def attach(_story: Story) -> None:
    say(
        "10  And a query that knows nothing of all this",
        "`examples/spark_totals.py` is plain Spark: totals by customer, with state in RocksDB. It goes on unchanged "
        "while its checkpoint is read, and nothing is written there. Each of its batches becomes a version; one of "
        "them has an order in the wrong unit.",
    )
    checkpoint, log = FOLDER / "checkpoints" / "totals", FOLDER / "logs" / "totals.log"
    query = ("python", str(HERE / "spark_totals.py"), str(checkpoint), "--wrong-from", "60000")
    with background(*query, log=log) as running:
        follow(
            "the query commits its first batches",
            running,
            log,
            lambda: (min(len(list(checkpoint.glob("commits/[0-9]*"))), 8), 8),
        )
        run("slackwater", "attach", str(checkpoint), "--app", "shop", "--once", lines=6)
    run("slackwater", "bisect", "shop", "--where", "SELECT customer FROM totals WHERE sum > 1000000")


def warehouse(_story: Story) -> None:
    say(
        "11  The warehouse has other totals",
        f"Finance summed up {ORDERS:,} orders itself. Of these, 38 got lost on their way to the app, two came late, "
        "after it had read the others, and the amount of one is no number. `reconcile` joins both sides, and says of "
        "each customer that differs why: by the table's lineage it looks for the customer's records in the topic, and "
        "follows each from version to version.",
    )
    kafka = os.environ["SLACKWATER_KAFKA"]
    totals = pd.DataFrame({"customer": [f"c{number:05}" for number in range(ORDERS)], "orders": 1})
    totals["cents"] = totals.index % 97 + 100
    totals.to_parquet(FOLDER / "warehouse.parquet")
    orders = [order_message(row) for row in totals[["customer", "cents"]].to_dict("records")]
    orders[7] = order_message({"customer": "c00007", "cents": "seven"})
    make_topic(kafka, "orders")
    send(kafka, orders[:20] + orders[22:-38])
    run("slackwater", "run", str(HERE / "orders.py"), "--until-caught-up", quiet=True)
    send(kafka, orders[20:22])
    beside = ("--with", str(FOLDER / "warehouse.parquet"))
    found = run("slackwater", "reconcile", "orders/customers", *beside, codes=(1,), lines=9)
    run("slackwater", "why-not", "orders/customers", "c00007")
    if "41 keys: 38 never in the topic, 2 not read yet, 1 rejected" not in found:
        console.print("[red]reconcile gives other reasons than there are: that is a bug in slackwater")
        raise SystemExit(1)
    console.print("[green]41 totals differ from the warehouse: 38 orders never came, 2 were late, 1 was rejected.")


def order_message(order: dict[str, object]) -> Message:
    return message(0, "orders", "customer", order)


def page(story: Story) -> None:
    say(
        "12  All of it on a page",
        "`slackwater serve` answers over HTTP, and has a page for people: a slider over all commits, the stages, rows "
        "and what changed in them, a key's history, and the same search, down to the event.",
    )
    log = story.logs / "serve.log"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    code = f"flights={HERE / 'flights.py'}"
    with background("slackwater", "serve", "--port", port, "--code", code, log=log) as running:
        url = f"http://127.0.0.1:{port}/#/flights"
        follow("the server starts", running, log, lambda: (int(answers(url)), 1))
        console.print(f"\n[bold]{url}")
        if sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI"):
            webbrowser.open(url)
            console.input("[dim]Enter ends the server[/] ")


def answers(url: str) -> bool:
    """Return True if a server answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  our own server
            return bool(answer.status == 200)
    except OSError:
        return False


def compare(arrived: object) -> None:
    """Show the totals of both apps and those of the flights. Ends the demo if staging's totals are wrong."""
    joined = duckdb.sql(
        f"""
        SELECT p.carrier, p.mean_delay AS production, s.mean_delay AS staging, truth.mean_delay AS truth,
               p.worst AS worst_production, s.worst AS worst_staging, truth.worst AS worst_truth,
               s.flights = truth.flights AND s.delay = truth.delay AND s.worst = truth.worst AS same
        FROM '{FOLDER}/production.parquet' p JOIN '{FOLDER}/staging.parquet' s USING (carrier)
        JOIN (SELECT carrier, count(*) flights, sum(arr_delay) delay, avg(arr_delay) mean_delay, max(arr_delay) worst
              FROM arrived GROUP BY carrier) truth USING (carrier)
        ORDER BY abs(p.mean_delay - s.mean_delay) DESC, carrier
        """
    ).fetchall()
    table = Table(title="arrival delay in minutes, by carrier", title_justify="left")
    for heading in (
        "carrier",
        "mean: production",
        "staging",
        "the flights",
        "worst: production",
        "staging",
        "the flights",
    ):
        table.add_column(heading, justify="left" if heading == "carrier" else "right")
    for row in joined:
        wrong = abs(row[1] - row[3]) > 1e-6
        style = "red" if wrong else None
        table.add_row(
            row[0], *(f"{value:,.1f}" for value in row[1:4]), *(f"{value:,.0f}" for value in row[4:7]), style=style
        )
    console.print(table)
    if not all(row[-1] for row in joined) or len(joined) != 16:
        console.print("[red]staging differs from the flights themselves: that is a bug in slackwater")
        raise SystemExit(1)
    console.print("[green]Staging equals the flights themselves for all 16 carriers, to the minute.")


ACTS = {
    1: (servers, ()),
    2: (app, (1,)),
    3: (snapshot, (2,)),
    4: (fault, (3,)),
    5: (search, (4,)),
    6: (reject, (2,)),
    7: (staging, (3,)),
    8: (alerts, (4,)),
    9: (side_by_side, (4, 7)),
    10: (attach, (1,)),
    11: (warehouse, (1,)),
    12: (page, (2,)),
}
"""The acts by number, each with the acts that it needs."""
LAST_WITH_APP = 6


def choose(words: str) -> list[int]:
    """Return the chosen acts, with the acts that they need. Without a choice, return all acts."""
    chosen, todo = set(), [*ACTS] if not words else []
    for word in filter(None, words.split(",")):
        if not word.strip().isdigit() or int(word) not in ACTS:
            names = ", ".join(f"{number} ({play.__name__})" for number, (play, _) in ACTS.items())
            raise SystemExit(f"ACTS={words}: {word!r} is no act; the acts are {names}")
        todo.append(int(word))
    while todo:
        number = todo.pop()
        chosen.add(number)
        todo += ACTS[number][1]
    return sorted(chosen)


def main(acts: Annotated[str, typer.Argument(help="Acts to tell, by number: 2,5. Default: all.")] = "") -> None:
    """Run all acts, or the chosen ones with the acts that they need."""
    began, chosen = time.monotonic(), choose(acts)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is not signal.SIG_IGN:  # as under nohup
            signal.signal(ending, lambda number, _frame: sys.exit(128 + number))  # so that its programs end as well
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # For the query of plain Spark, which knows nothing of slackwater.
    os.environ.update(find_java("the demo").environment)
    console.rule("[bold]slackwater: a time machine for streaming state")
    story = Story()
    with story.app:
        for number in chosen:
            act_began = time.monotonic()
            if number > LAST_WITH_APP:
                story.app.close()
            ACTS[number][0](story)
            console.print(f"[dim]act {number}: {time.monotonic() - act_began:.0f} s")
    console.print(f"\n[dim]told in {time.monotonic() - began:.0f} s")
    say(
        "Go on by hand",
        "The servers still run, and all state is there:\n\n"
        "    . .venv/bin/activate                        # the command `slackwater`\n"
        f"    source {FOLDER}/dev/env.sh\n"
        "    slackwater status\n"
        "    slackwater log flights --limit 10\n"
        '    slackwater query flights@~3 "SELECT * FROM aircraft ORDER BY legs DESC LIMIT 5"\n'
        "    slackwater get flights-staging/carriers UA\n"
        "    slackwater run examples/flights.py          # Ctrl-C stops it\n"
        "    slackwater serve                            # the page, at http://127.0.0.1:8350\n\n"
        f"`slackwater dev down --folder {FOLDER}` stops them (`--purge` deletes the data). "
        "Your own topic: `docs/first-app.md`.",
    )


if __name__ == "__main__":
    typer.run(main)
