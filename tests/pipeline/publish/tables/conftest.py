"""Tables of both formats."""

from pathlib import Path

import pytest

from tests.pipeline.publish.tables.lakes import DeltaLake, IcebergLake, Lake


@pytest.fixture(params=[DeltaLake, IcebergLake])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return request.param(tmp_path)  # type: ignore[no-any-return]
