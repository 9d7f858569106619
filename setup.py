"""Packages of the distribution: every folder of the root that has an `__init__.py`, under the name `slackwater`."""

from setuptools import find_packages, setup

OTHERS = ("bench*", "docs*", "examples*", "tests*", "pyspark_slackwater*")

setup(packages=["pyspark_slackwater", "slackwater", *(f"slackwater.{room}" for room in find_packages(exclude=OTHERS))])
