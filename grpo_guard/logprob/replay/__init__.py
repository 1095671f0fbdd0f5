"""Sampling under a public coin, and replaying it.

The nodes draw each token as the argmax of score + noise, where the noise is a pure function of
(seed, position, token). Given the seed, anyone can compute which token an honest node drew. `draw`
is the sampler, and `generate` and `vllm_processor` run it on nodes. In the scoring pass,
`candidates` and `margins` compare claimed tokens with the draw, and `evidence` allows for drift.
"""
