"""Set-up for running vLLM in this process; import it before vLLM."""

import os

# One process instead of three: a third of the start-up time, and nothing to clean up.
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    HF_HUB_OFFLINE="1",
)
