"""DuckDB 1.5 in its own folder and processes, for its Iceberg extension, which DuckDB 2.0 lacks."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from slackwater.common.whole_file import lock_file
from slackwater.pipeline.dev.cache import cache_folder

_VERSION = "1.5.5"
_PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import duckdb
con = duckdb.connect(config={"allow_unsigned_extensions": "true"})
for name in ("avro", "iceberg"):
    con.load_extension(f"{sys.argv[1]}/duckdb_extension_{name}/extensions/v{duckdb.__version__}/{name}.duckdb_extension")
found = con.sql(sys.argv[2])
print(json.dumps([dict(zip(found.columns, row)) for row in found.fetchall()], default=str))
"""


def ask(sql: str) -> list[dict[str, Any]]:
    """Return a query's rows; values without a JSON form are text."""
    folder = cache_folder() / f"duckdb-iceberg-{_VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock_file(Path(f"{folder}.lock"), lambda: None):
        if not (folder / "ready").exists():
            packages = [
                f"{name}=={_VERSION}" for name in ("duckdb", "duckdb-extension-avro", "duckdb-extension-iceberg")
            ]
            command = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--target",
                str(folder),
                *packages,
            ]
            subprocess.run(command, check=True, capture_output=True)
            (folder / "ready").touch()
    words = [sys.executable, "-c", _PROGRAM, str(folder), sql]
    return list(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
