"""TRL, 1.6 and later: decorated reward functions, a guarded trainer, and peers' completions.

``reward`` and ``trainer`` are the two ways in, ``peers`` brings other nodes' completions to them
and ``forward`` the trainer's own scoring; ``batch``, ``review`` and ``trainer_checks`` serve both.
"""
