"""Checks that the packages of optional extras are installed."""

import importlib.util

from ..errors import Refused
from .install import install_hint

_PACKAGES_BY_EXTRA = {
    "agents": ("mcp",),
    "clouds": ("obstore",),
    "delta": ("deltalake",),
    "iceberg": ("pyiceberg",),
    "registry": ("datafusion", "ptars", "grpc_tools"),
    "serve": ("httptools", "pebble", "starlette", "uvicorn", "uvloop"),
    "spark": ("pyspark", "pandas"),
}


def require_extras(extras: str, purpose: str) -> None:
    """Raise `Refused` if a package of these extras, such as "serve,agents", is missing. `purpose` begins the message.

    Import modules that need an extra only after this check, so that the base install imports without them.
    """
    packages = [name for extra in extras.split(",") for name in _PACKAGES_BY_EXTRA[extra]]
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        managed = "; on a managed Spark, run slackwater with the cluster's own pyspark" if "pyspark" in missing else ""
        *all_but_last, last = missing
        names = f"{', '.join(all_but_last)} and {last}, which are" if all_but_last else f"{last}, which is"
        raise Refused(f"{purpose} needs {names} not installed", hint=install_hint(extras) + managed)
