"""Small modules for the whole product: times, durations, text, value checks, atomic files, warnings.

They import nothing of the product except its errors: no stores, no manifests, no Spark.
"""
