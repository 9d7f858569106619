"""The snapshot protocol of Chandy and Lamport: consistent snapshots of a running network, without stopping it.

Source: K. M. Chandy and L. Lamport, "Distributed Snapshots: Determining Global States of Distributed Systems", ACM
Transactions on Computer Systems 3(1), February 1985, pages 63-75.

This package only decides: it takes events and returns actions, which the caller carries out. It has no clock, no
randomness and no I/O, and imports only the standard library, so that tests can run a network of processes under any
schedule.
"""
