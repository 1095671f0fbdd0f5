"""GenRL (Gensyn's framework behind RL Swarm), 0.3: guards peers' game trees and their rewards.

``game`` is the entry point, ``gate`` admits foreign trees, ``trees`` checks the trees sent by
peers, ``rewards`` settles rewards, and ``rollouts`` adds ids and signatures to a node's own trees.
"""
