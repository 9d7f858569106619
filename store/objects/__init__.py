"""Object stores with one interface: a folder, memory or S3.

Also wrappers that count requests, retry requests, or spool objects on this machine, and request prices. A store treats
the name of an object as a plain key; the meaning of keys is defined by other packages.
"""
