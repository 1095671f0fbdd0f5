import os
from importlib.util import find_spec

# Tests that drive GenRL's own code run in a separate environment: `make test-genrl`.
collect_ignore_glob = [] if find_spec("genrl") else ["test_genrl_[!i]*.py"]  # all except _import

os.environ["WANDB_MODE"] = "offline"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
