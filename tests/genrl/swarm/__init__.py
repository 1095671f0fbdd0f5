"""A GenRL swarm on bundled parts: two honest nodes, one that teaches a phrase, with and without a
guard.

``node`` is a node in GenRL's format, ``exchange`` their means of communication, and ``play`` a run
of three nodes.
"""
