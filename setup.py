"""Packages of the distribution: each folder with an `__init__.py` in the root, under the name `slackwater`.

The description on PyPI is the README, with links and pictures that point to the repository (`common/install.py`).
"""

import sys
from pathlib import Path

from setuptools import find_packages, setup

sys.path.insert(0, str(Path(__file__).parent / "common"))
from install import with_absolute_links

OTHERS = ("bench*", "docs*", "examples*", "tests*", "pyspark_slackwater*")
README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")

setup(
    packages=["pyspark_slackwater", "slackwater", *(f"slackwater.{room}" for room in find_packages(exclude=OTHERS))],
    script_name="setup.py",  # which is no module of the package
    long_description=with_absolute_links(README),
    long_description_content_type="text/markdown",
)
