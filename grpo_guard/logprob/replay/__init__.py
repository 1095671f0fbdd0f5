"""Sampling under a public coin, and its replay.

The nodes draw each token as the argmax of score + noise, where the noise is a pure function of
(seed, position, token). Given the seed, anyone can compute which token an honest node drew.

* `draw`: the sampler itself, on scores.
* `generate`: sampling with transformers, for nodes.
* `vllm_processor`: sampling with vLLM, for nodes.
* `candidates`, `contenders`, `margins`: how far a claimed token is from the drawn one, computed in
  the scoring pass; `vocabulary_hash` finds the few tokens whose noise could win.
* `evidence`: turns margins into a p-value that allows for numerical drift.
* `slots`: which node may fill which slot, and for which prompt.
* `verifier`: `SeedReplayVerifier`, which combines these.
"""
