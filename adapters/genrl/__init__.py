"""GenRL (Gensyn's framework behind RL Swarm), 0.3: peers' game trees and what they earn.

``game`` is the way in, ``gate`` the place where foreign trees come in, ``trees`` what a peer may
have sent, ``rewards`` what completions earn, ``rollouts`` what a node sends beside its texts.
"""
