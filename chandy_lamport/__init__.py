"""The protocol of Chandy and Lamport: one consistent snapshot of a running network, without stopping it.

Source: K. M. Chandy and L. Lamport, "Distributed Snapshots: Determining Global States of Distributed Systems", ACM
Transactions on Computer Systems 3(1), February 1985, pages 63-75.

What lives here decides; it never does. Events go in, actions come out, and the caller makes them true. There is no
clock, no randomness, no I/O and no import from outside the standard library, so a network of these machines runs under
any schedule a test can think of.
"""
