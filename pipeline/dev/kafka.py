"""Single-node Kafka broker for development, the demo and tests: KRaft, controller and broker in one JVM."""

import base64
import re
import subprocess
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from ...errors import SlackwaterError
from .jars import Jars
from .jvm_server import HOST, JVM_FLAGS, EmbeddedServer, choose_port, is_port_open

_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
# Relative to the server's own folder: this file could not say every path.
log.dirs=log

auto.create.topics.enable=false
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1

# Events may be dated years back; retention by time would delete them as they come.
log.retention.ms=-1

# A consumer that is alone need not wait for others.
group.initial.rebalance.delay.ms=0
# After a crash the controller takes the broker for alive for so long, and lets its successor wait (else 9 s).
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500

num.network.threads=2
num.io.threads=4
background.threads=2
num.recovery.threads.per.data.dir=2
group.coordinator.threads=1
# The default takes a quarter of the heap.
log.cleaner.dedupe.buffer.size=4194304
"""
_META_FILE = "meta.properties"


class EmbeddedKafka(EmbeddedServer):
    """Kafka broker in a folder: `with EmbeddedKafka(folder) as broker:`; clients connect to `broker.bootstrap`.

    `kill` and another `start` simulate a crash and recovery: the port and the data stay, and the broker
    answers after about 3 s.
    """

    name: ClassVar[str] = "Kafka"
    jars: ClassVar[Jars] = Jars("Kafka 4.1.0", "kafka-4.1.0", Path(__file__).with_name("kafka-jars.txt"), 43)
    heap: ClassVar[str] = "512m"

    @property
    def bootstrap(self) -> str:
        return self.address

    def is_answering(self) -> bool:
        cluster = self._cluster_id()
        if not cluster or not is_port_open(self.port):
            return False
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        silent: dict[str, Any] = {"log_level": 0, "error_cb": lambda _error: None}
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **silent})
        try:
            listed = admin.list_topics(timeout=2)
        except KafkaException:
            return False
        if listed.cluster_id != cluster:
            return False
        partitions = (partition for topic in listed.topics.values() for partition in topic.partitions.values())
        return bool(listed.brokers) and all(partition.leader >= 0 for partition in partitions)

    def _cluster_id(self) -> str:
        with suppress(FileNotFoundError):
            match = re.search(r"^cluster\.id=(.+)$", (self.folder / "log" / _META_FILE).read_text(), re.MULTILINE)
            return match[1].strip().replace("\\", "") if match else ""
        return ""

    def _prepare(self, java: str, classpath: str) -> tuple[str, ...]:
        settings = self.folder / "server.properties"
        # Only the broker connects to its controller, so that port may change with each start.
        text = _SETTINGS.format(host=HOST, port=self.port, controller_port=choose_port())
        settings.write_text(text, encoding="ascii")
        # Kafka writes this file last when it prepares the folder.
        if not (self.folder / "log" / _META_FILE).exists():
            # 22 characters of base64 that never start with a dash, which would be parsed as an option.
            cluster = base64.urlsafe_b64encode(uuid.uuid4().hex[:16].encode()).decode().rstrip("=")
            tool = (java, *JVM_FLAGS, "-cp", classpath, "kafka.tools.StorageTool", "format", "--ignore-formatted")
            command = (*tool, "--cluster-id", cluster, "--config", settings.name)
            with self.log.open("ab") as out:
                done = subprocess.run(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            if done.returncode:
                raise self._start_error(SlackwaterError, f"Kafka could not prepare {self.folder}")
        return ("-Dorg.apache.logging.log4j.level=WARN", "-cp", classpath, "kafka.Kafka", settings.name)
