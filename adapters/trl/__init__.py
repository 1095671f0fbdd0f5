"""TRL, 1.6 and later: decorated reward functions, a guarded trainer, and peers' completions.

``reward`` and ``trainer`` are the two entry points, ``peers`` supplies other nodes' completions,
and ``forward`` reuses the trainer's own scoring; ``batch``, ``review`` and ``trainer_checks`` are
used by both entry points.
"""
