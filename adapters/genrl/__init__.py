"""GenRL (Gensyn's framework behind RL Swarm), 0.3: peers' game trees and what they earn.

``game`` is the entry point, ``gate`` admits foreign trees, ``trees`` checks what a peer sent,
``rewards`` settles rewards, ``rollouts`` adds ids and signatures to what a node sends.
"""
