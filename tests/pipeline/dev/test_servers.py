"""Kafka and S3 as development servers: they work, keep their data, and leave no process behind."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from threading import Barrier
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import boto3
import psutil
import pytest
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from slackwater.cli.main import app
from slackwater.errors import Refused, Unavailable
from slackwater.pipeline.dev.jvm_server import HOST, choose_port, is_port_open
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.dev.s3 import BUCKET, EmbeddedS3
from slackwater.pipeline.dev.servers import DevServers
from typer.testing import CliRunner

from tests.support.running import eventually

PATIENCE_S = 60.0


def processes_of(folder: Path) -> dict[int, str]:
    """Return the processes of all servers under a folder: program by process id."""
    mark = f"-Dslackwater.server={folder}{os.sep}"
    return {
        each.pid: Path(each.info["cmdline"][0]).name
        for each in psutil.process_iter(["pid", "cmdline", "status"])
        if each.info["status"] != psutil.STATUS_ZOMBIE
        and any(word.startswith(mark) for word in each.info["cmdline"] or ())
    }


def servers_of(folder: Path) -> set[int]:
    """Return the process ids of the servers among them."""
    return {pid for pid, program in processes_of(folder).items() if program == "java"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder whose name has blanks, a comma and a non-ASCII letter. Checks that no server is left in it."""
    folder = tmp_path / "a folder, für alle"
    folder.mkdir()
    yield folder
    left = processes_of(folder)
    for pid in left:
        psutil.Process(pid).kill()
    assert left == {}


@contextmanager
def s3(environment: Mapping[str, str]) -> Iterator[Any]:
    """Yield an S3 client that is closed at the end, since a stopping server waits for open connections."""
    client = boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL_S3"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region_name=environment["AWS_DEFAULT_REGION"],
    )
    with closing(client):
        yield client


@pytest.mark.ci
@pytest.mark.s3
def test_one_of_many_concurrent_conditional_puts_wins_and_a_crash_loses_nothing(folder: Path) -> None:
    with EmbeddedS3(folder / "s3") as bucket, s3(bucket.environment) as client:
        together = Barrier(8)

        def put_all(writer: int) -> dict[str, int]:
            won = {}
            for number in range(10):
                together.wait(PATIENCE_S)
                try:
                    client.put_object(Bucket=BUCKET, Key=f"race/{number}", Body=str(writer), IfNoneMatch="*")
                    won[f"race/{number}"] = writer
                except ClientError as error:
                    if error.response["Error"]["Code"] != "PreconditionFailed":
                        raise
            return won

        with ThreadPoolExecutor(8) as threads:
            wins = [win for won in threads.map(put_all, range(8)) for win in won.items()]
        assert len(wins) == len(dict(wins)) == 10
        objects = folder / "s3" / "objects" / BUCKET / "race"
        (objects / "0001.json-9f9dbe2c-2f4f-4e0c-9a34-4d4ac6a8ed3a").write_bytes(b"half of")
        bucket.kill()
        bucket.start()
        listed = client.list_objects_v2(Bucket=BUCKET, Prefix="race/")["Contents"]
        assert {each["Key"] for each in listed} == dict(wins).keys()
        for key, writer in wins:
            assert client.get_object(Bucket=BUCKET, Key=key)["Body"].read() == str(writer).encode()


@pytest.mark.s3
def test_s3_accepts_only_its_own_credentials(folder: Path) -> None:
    with EmbeddedS3(folder / "s3") as bucket:
        known = bucket.environment
        with s3(known) as client:
            body = os.urandom(20 << 20)  # above what is sent in one part
            client.upload_fileobj(BytesIO(body), BUCKET, "large")
            assert client.get_object(Bucket=BUCKET, Key="large")["Body"].read() == body
        for name, code in (("SECRET_ACCESS_KEY", "SignatureDoesNotMatch"), ("ACCESS_KEY_ID", "InvalidAccessKeyId")):
            with s3({**known, f"AWS_{name}": "wrong"}) as client:
                for ask in (
                    partial(client.list_objects_v2, Bucket=BUCKET),
                    partial(client.get_object, Bucket=BUCKET, Key="large"),
                    partial(client.put_object, Bucket=BUCKET, Key="new", Body=b"1"),
                    partial(client.delete_object, Bucket=BUCKET, Key="large"),
                ):
                    with pytest.raises(ClientError) as refused:
                        ask()
                    assert refused.value.response["Error"]["Code"] == code
        with pytest.raises(HTTPError, match="403"):
            urlopen(f"{bucket.endpoint}/{BUCKET}/large", timeout=PATIENCE_S)  # noqa: S310  our own server
        with s3(known) as client:
            assert [each["Key"] for each in client.list_objects_v2(Bucket=BUCKET)["Contents"]] == ["large"]


def test_a_server_stops_when_its_test_process_is_killed(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from slackwater.pipeline.dev.s3 import EmbeddedS3\n"
        "with EmbeddedS3(Path(sys.argv[1])): print('ready', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(folder / "s3")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as test:
        assert test.stdout is not None
        assert test.stdout.readline() == b"ready\n"
        assert len(servers_of(folder)) == 1
        test.kill()
    eventually(lambda: not processes_of(folder), "it ends")


def on_a_terminal(*words: str) -> list[str]:
    """Return the lines that a user sees in a terminal, without colours."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "slackwater.cli.main", *words]
    with subprocess.Popen(command, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"}) as verb:
        os.close(slave)
        seen = b""
        with suppress(OSError):  # the end, on Linux
            while piece := os.read(master, 65_536):
                seen += piece
        assert verb.wait() == 0, seen
    os.close(master)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode()).replace("\r", "").splitlines()


@pytest.mark.kafka
@pytest.mark.s3
def test_dev_servers_from_the_first_up_to_the_purge(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    ours = folder / ".slackwater"

    def dev(*words: str) -> Any:
        result = CliRunner().invoke(app, ["dev", *words, "--json"], catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    # Two at once: one starts the servers, the other waits and finds them.
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(DevServers(ours).up) for _ in range(2)]
        assert sorted(each.result() for each in both) == [(), ("Kafka", "S3")]
    first = dev("up")
    assert first["started"] == []
    assert {each["pid"] for each in first["servers"]} == servers_of(folder)
    assert (ours / "dev" / "env.sh").read_text().count("export ") == len(first["environment"])
    shown = on_a_terminal("dev", "up")
    heading = shown.index("To use them, type these lines, or just: source .slackwater/dev/env.sh")
    exports = [f"export {name}={value}" for name, value in first["environment"].items()]
    assert shown[heading - 1] == ""
    assert shown[heading + 1 :] == exports, "nothing stands among them, or behind"
    evaluated = (
        'eval "$("$0" -m slackwater.cli.main dev up 2> /dev/null)" && echo "$SLACKWATER_STORE $SLACKWATER_KAFKA"'
    )
    found = subprocess.run(["/bin/sh", "-c", evaluated, sys.executable], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [first["environment"][f"SLACKWATER_{name}"] for name in ("STORE", "KAFKA")]
    with s3(first["environment"]) as client:
        client.put_object(Bucket=BUCKET, Key="flights/app.json", Body=b"{}")

    with pytest.raises(Refused, match="Kafka runs already, on port"):
        DevServers(ours).up(kafka_port=choose_port())

    # What is killed comes back with its records, on its port; the other one goes on.
    client = {"bootstrap.servers": first["environment"]["SLACKWATER_KAFKA"], "log_level": 0}
    admin = AdminClient(client)
    admin.create_topics([NewTopic("flights", 2, 1)])["flights"].result(PATIENCE_S)
    producer = Producer(client)
    # From the year 2013: dated records must not count as outlived.
    producer.produce("flights", b"EWR-IAH", partition=1, timestamp=1_357_020_000_000)
    assert producer.flush(PATIENCE_S) == 0
    broker_pid = first["servers"][0]["pid"]
    psutil.Process(broker_pid).kill()
    eventually(lambda: not psutil.pid_exists(broker_pid), "it ends")
    assert not is_port_open(int(first["servers"][0]["address"].rpartition(":")[2]))
    assert [each["state"] for each in dev("status")] == ["stopped", "running"]
    second = dev("up")
    assert second["started"] == ["Kafka"]
    assert second["environment"] == first["environment"]
    with closing(Consumer({**client, "group.id": "test", "enable.auto.commit": False})) as consumer:
        consumer.assign([TopicPartition("flights", 1, 0)])
        read = consumer.consume(1, timeout=PATIENCE_S)
    assert [message.value() for message in read] == [b"EWR-IAH"]

    assert dev("down", "--dry-run")["stopped"] == ["Kafka", "S3"]
    assert dev("down")["stopped"] == ["Kafka", "S3"]
    assert servers_of(folder) == set()
    assert dev("down")["stopped"] == []

    third = dev("up")
    assert third["started"] == ["Kafka", "S3"]
    with s3(third["environment"]) as client:
        assert client.get_object(Bucket=BUCKET, Key="flights/app.json")["Body"].read() == b"{}"

    doomed = dev("down", "--purge", "--dry-run")["deleted"]
    assert [Path(each["path"]).name for each in doomed] == ["kafka", "s3", "dev"]
    assert len(servers_of(folder)) == 2
    assert [each["path"] for each in dev("down", "--purge")["deleted"]] == [each["path"] for each in doomed]
    assert not ours.exists()


@pytest.mark.kafka
def test_ctrl_c_during_start_leaves_no_server(folder: Path) -> None:
    command = [sys.executable, "-m", "slackwater.cli.main", "dev", "up"]
    for _ in range(5):
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as up:
            eventually(lambda: len(servers_of(folder)) == 2, "both are launched")
            starting = [psutil.Process(pid) for pid in servers_of(folder)]
            for server in starting:
                server.suspend()  # what does not run does not come up before the signal does
            up.send_signal(signal.SIGINT)
            for server in starting:
                with suppress(psutil.NoSuchProcess):  # one that does not run can be killed all the same
                    server.resume()
            out, errors = up.communicate(timeout=PATIENCE_S)
        if up.returncode:
            break
        # On a busy machine they may have been up before they were seen.
        assert DevServers(folder / ".slackwater").down() == ("Kafka", "S3")
    assert (up.returncode, out) == (130, b"")
    assert b"Traceback" not in errors
    assert servers_of(folder) == set()


@pytest.mark.kafka
def test_a_server_that_cannot_start_reports_the_reason_and_leaves_no_process(folder: Path) -> None:
    servers = DevServers(folder)
    (folder / "kafka" / "log").mkdir(parents=True)
    (folder / "kafka" / "log" / "meta.properties").write_text("version=1\ncluster.id=broken\nnode.id=7\n")
    with pytest.raises(Unavailable, match=r"Kafka ended while starting, with exit code 1; the last lines") as raised:
        servers.up()
    assert "node" in raised.value.message
    assert str(folder / "dev" / "kafka.log") in raised.value.hint
    assert servers_of(folder) == set()
    assert [each.state for each in servers.status()] == ["stopped", "stopped"]


def test_a_port_in_use_is_refused_before_anything_starts(folder: Path) -> None:
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Refused, match=f"S3 cannot listen on port {port}") as raised:
            DevServers(folder).up(s3_port=port)
        assert "--s3-port" in raised.value.hint
        assert choose_port(port) != port
    assert choose_port(port) == port


@pytest.mark.parametrize("kind", [EmbeddedS3, pytest.param(EmbeddedKafka, marks=pytest.mark.kafka)])
def test_a_server_whose_chosen_port_was_taken_during_start_uses_another(
    folder: Path, kind: type[EmbeddedKafka | EmbeddedS3]
) -> None:
    servers = [kind(folder / name) for name in ("one", "two")]
    for server in servers:
        # The port is free until one of them has it, which takes longer than to launch both.
        server.port = servers[0].port
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(kind.launch, servers))
        for _ in threads.map(kind.wait_until_answering, servers):
            pass
    one, two = servers
    try:
        assert one.port != two.port
        assert all(server.is_answering() for server in servers)
        # What answers on the other's port is not this server.
        one.port, two.port = two.port, one.port
        assert not any(server.is_answering() for server in servers)
    finally:
        for server in servers:
            server.kill()


@pytest.mark.ci
def test_a_server_whose_required_port_was_taken_during_start_is_refused(folder: Path) -> None:
    first = EmbeddedS3(folder / "one")
    second = EmbeddedS3(folder / "two", port=first.port)
    with first, pytest.raises(Refused, match=f"S3 cannot listen on port {first.port}"):
        second.start()


@pytest.mark.ci
@pytest.mark.kafka
@pytest.mark.s3
def test_two_folders_that_start_at_once_get_separate_servers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Both want the usual ports.
    for name in ("KAFKA_PORT", "S3_PORT"):
        monkeypatch.setattr(f"slackwater.pipeline.dev.servers.{name}", choose_port())
    both = [DevServers(folder / name) for name in ("one", "two")]
    try:
        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(DevServers.up, both)) == [("Kafka", "S3")] * 2
        status = [each for servers in both for each in servers.status()]
        assert [each.state for each in status] == ["running"] * 4
        assert len({each.address for each in status}) == 4
        one, two = (AdminClient({"bootstrap.servers": each.environment()["SLACKWATER_KAFKA"]}) for each in both)
        one.create_topics([NewTopic("orders", 1)])["orders"].result(PATIENCE_S)
        assert "orders" not in two.list_topics(timeout=PATIENCE_S).topics
    finally:
        for each in both:
            each.purge()


def test_an_unrelated_process_that_reused_a_servers_id_is_left_alone(folder: Path) -> None:
    (folder / "dev").mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        remembered = {"pid": stranger.pid, "mark": "-Dslackwater.server=x", "port": 9092, "started_ms": 1}
        (folder / "dev" / "kafka.json").write_text(json.dumps(remembered))
        servers = DevServers(folder)
        assert [each.state for each in servers.status()] == ["stopped", "stopped"]
        assert servers.down() == ()
        assert stranger.poll() is None
        stranger.kill()
