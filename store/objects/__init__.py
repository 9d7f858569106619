"""Blobs and their guarantees: an object store behind one Protocol, in a folder, in memory or in S3.

Here too: counting requests and what they cost, retrying them, spooling them on this machine, injecting faults. Not
here: what the objects mean; names of objects are plain keys.
"""
