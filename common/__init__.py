"""Helpers for the whole product: times, durations, safe text, value checks, atomic files, warnings.

These modules import only the product's errors: no stores, no manifests, no Spark.
"""
