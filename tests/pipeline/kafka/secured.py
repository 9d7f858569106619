"""Brokers with users: one with ACLs (by KRaft's authorizer, which denies by default), one with a guarded listener."""

from collections.abc import Iterable
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from slackwater.pipeline.dev.jvm_server import HOST, choose_port
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.kafka.protocol import Kafka

ADMIN, USER = "admin", "app"
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required username={0} password={0}-secret"


class SecuredKafka(EmbeddedKafka):
    """Broker on which `admin` may do everything, and `app` only what `allow` grants."""

    def _prepare(self, java: str, classpath: str) -> tuple[str, ...]:
        made = super()._prepare(java, classpath)
        settings = self.folder / "server.properties"
        users = " ".join(f'user_{name}="{name}-secret"' for name in (ADMIN, USER))
        text = settings.read_text(encoding="ascii").replace("PLAINTEXT://", "SASL_PLAINTEXT://")
        text = text.replace(
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,",
            "listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,",
        )
        settings.write_text(
            f"{text}\n"
            "inter.broker.listener.name=SASL_PLAINTEXT\n"
            "sasl.enabled.mechanisms=PLAIN\n"
            "sasl.mechanism.inter.broker.protocol=PLAIN\n"
            f"listener.name.sasl_plaintext.plain.sasl.jaas.config={_LOGIN.format(ADMIN)} {users};\n"
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
            # The controller's listener has no users.
            f"super.users=User:{ADMIN};User:ANONYMOUS\n",
            encoding="ascii",
        )
        return made

    def is_answering(self) -> bool:
        """True if the broker admits the administrator."""
        from slackwater.errors import SlackwaterError
        from slackwater.pipeline.dev.jvm_server import is_port_open

        if not is_port_open(self.port):
            return False
        try:
            self.client(ADMIN).partition_counts(timeout_s=2)
        except SlackwaterError:
            return False
        return True

    def client(self, user: str) -> Kafka:
        """Return a Kafka client of a user."""
        properties = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": user,
            "sasl.password": f"{user}-secret",
        }
        return open_kafka(properties)

    def _binding(self, operation: str, kind: str, name: str, *, prefixed: bool) -> tuple[object, ...]:
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        return (
            ResourceType[kind.upper()],
            name,
            pattern,
            f"User:{USER}",
            "*",
            AclOperation[operation.upper()],
            AclPermissionType.ALLOW,
        )

    def allow(self, operation: str, kind: str, name: str, *, prefixed: bool = False) -> None:
        """Grant a right to the app's user. The arguments are those of `kafka-acls`: `Read`, `topic`, `orders`."""
        admin = AdminClient(self.client(ADMIN).properties)
        for answer in admin.create_acls(
            [AclBinding(*self._binding(operation, kind, name, prefixed=prefixed))]
        ).values():
            answer.result(30)

    def forbid(self, operation: str, kind: str, name: str, *, prefixed: bool = False) -> None:
        """Revoke a right."""
        admin = AdminClient(self.client(ADMIN).properties)
        asked = AclBindingFilter(*self._binding(operation, kind, name, prefixed=prefixed))
        for answer in admin.delete_acls([asked]).values():
            assert len(answer.result(30)) == 1


class GuardedKafka(EmbeddedKafka):
    """A broker with a second listener for clients that log in; `lines` has its settings.

    The broker tells these clients to use the port `door`, by default the listener's own.
    """

    def __init__(
        self, folder: Path, lines: Iterable[str], *, protocol: str = "SASL_PLAINTEXT", door: int | None = None
    ) -> None:
        super().__init__(folder)
        self.listener_port = choose_port()
        self.guarded = f"{HOST}:{door or self.listener_port}"
        self._lines, self._protocol = tuple(lines), protocol

    def _prepare(self, java: str, classpath: str) -> tuple[str, ...]:
        main = super()._prepare(java, classpath)
        settings = self.folder / main[-1]
        lines = settings.read_text().splitlines()
        more = {
            "listeners": f",GUARDED://{HOST}:{self.listener_port}",
            "advertised.listeners": f",GUARDED://{self.guarded}",
            "listener.security.protocol.map": f",GUARDED:{self._protocol}",
        }
        lines = [line + more.get(line.partition("=")[0], "") for line in lines]
        settings.write_text("\n".join((*lines, *self._lines)))
        return main


def login_module(name: str, arguments: str = "") -> str:
    """Return a guarded listener's setting for a mechanism, such as `plain`, with the arguments of its module."""
    modules = {
        "plain": "plain.PlainLoginModule",
        "scram-sha-256": "scram.ScramLoginModule",
        "oauthbearer": "oauthbearer.OAuthBearerLoginModule",
    }
    module = f"org.apache.kafka.common.security.{modules[name]} required {arguments}".rstrip()
    return f"listener.name.guarded.{name}.sasl.jaas.config={module};"
