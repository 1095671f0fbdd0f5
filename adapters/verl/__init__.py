"""verl, 0.9.1 and later: a reward function, or a reward manager that sees whole groups.

``reward`` guards a ``compute_score``. ``manager`` guards what another manager graded: ``batch``
makes rows of it, ``actor`` holds the guard for all workers and ``groups`` brings siblings together.
``agent_loop`` tells the manager what reward workers are not told; ``settings`` reads verl's
configuration, and ``plugin`` registers names with verl.
"""
