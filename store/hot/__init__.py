"""Hot places: further stores with quick and cheap puts, in which batches write their SSTs.

Nothing here knows the content of SSTs.
"""
