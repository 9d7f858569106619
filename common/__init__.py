"""Small modules for all rooms: times, durations, text, value checks, atomic files, warnings.

Independent of the product: no stores, no manifests, no Spark.
"""
