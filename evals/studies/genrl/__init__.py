"""A GenRL swarm on bundled parts: two honest nodes, one that teaches a phrase, with and without a
guard.

``node`` is a node as GenRL has it, ``exchange`` what they talk through, ``play`` a run of three,
and ``measure`` the figures of docs/genrl.md.
"""
