"""Small modules that every room uses: times, durations, text, checks of values, whole files, warnings.

Nothing here knows the product: no stores, no manifests, no Spark.
"""
