import os
from importlib.util import find_spec

# What drives GenRL's own code runs in an environment of its own: `make test-genrl`.
collect_ignore_glob = [] if find_spec("genrl") else ["test_*.py"]

os.environ["WANDB_MODE"] = "offline"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
