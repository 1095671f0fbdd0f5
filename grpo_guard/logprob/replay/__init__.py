"""Sampling under a public coin, and its replay.

The nodes draw each token as the argmax of score + noise, where the noise is a pure function of
(seed, position, token); whoever knows the seed finds out which token an honest node drew.

* `draw`: the sampler itself, on scores.
* `generate`: nodes that sample with transformers.
* `vllm_processor`: nodes that sample with vLLM.
* `candidates`, `contenders`, `margins`: how far a claimed token is from the drawn one, in the
  scoring pass; `vocabulary_hash` finds the few tokens whose noise could win.
* `evidence`: from margins to a p-value that survives numerical drift.
* `slots`: whose turn it was, and for which prompt.
* `verifier`: `SeedReplayVerifier`, which puts these together.
"""
