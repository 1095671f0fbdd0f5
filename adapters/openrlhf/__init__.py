"""OpenRLHF, 0.10 and later: a reward file, or an agent file that sees token ids and whole groups.

``reward`` guards a ``reward_func``. ``agent`` guards an executor: ``rollout`` represents a single
sample from the executor, and ``groups`` settles all samples of a prompt.
"""
