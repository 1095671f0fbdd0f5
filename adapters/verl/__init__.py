"""verl, 0.9.1 and later: a reward function, or a reward manager that sees whole groups.

``reward`` guards a ``compute_score`` function. ``manager`` guards rewards that another manager
graded: ``batch`` reads the trajectories, ``actor`` holds the guard for all workers, and ``groups``
collects siblings. ``agent_loop`` gives the manager information that reward workers do not receive;
``settings`` reads verl's configuration, and ``plugin`` registers names with verl.
"""
