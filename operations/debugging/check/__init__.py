"""Whether a program is a function of its input: past versions are run again otherwise arranged, and compared.

What varies is decided without Spark (`arrangements.py`), as is what differs (`differences.py`).
"""
