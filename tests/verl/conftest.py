import contextlib
import os
import time
from importlib.util import find_spec

import pytest

from tests.helpers.subprocesses import environment

# Tests that drive verl's own code run in a separate environment: `make test-verl`.
collect_ignore_glob = [] if find_spec("verl") else ["test_verl_real_*.py"]

if find_spec("verl"):  # other tests in this process have their own Ray
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_AUTH_MODE"] = "token"  # its ports are open to the network; read at import
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ["HF_HUB_OFFLINE"] = "1"
    # By default its workers yield to all other processes and starve on a busy machine.
    os.environ.setdefault("RAY_worker_niceness", "0")


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory):
    from tests.verl.tiny_verl import save_tokenizer

    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture
def configuration(tokenizer_folder):
    """verl's own configuration with overrides, composed as by its command line."""
    from tests.verl.tiny_verl import compose

    return lambda *overrides, **more: compose(tokenizer_folder, *overrides, **more)


@pytest.fixture(scope="session")
def ray_cluster():
    import ray

    # Workers import the tests' reward functions by name.
    os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture
def reward_loop(ray_cluster, configuration, tmp_path):
    """verl's reward loop with a guard; its workers are named, and end with the test."""
    from verl.experimental.reward_loop import RewardLoopManager

    from grpo_guard.adapters.verl.actor import NAME
    from tests.verl.tiny_verl import GUARDED, UNGUARDED_FUNCTION, guarded_by

    loops = []

    def start(*overrides, guard=None, **own):
        given = guarded_by(tmp_path, *([guard] if guard else []), **own)
        # As many answers in validation; otherwise the manager alone would not wait for slow
        # siblings.
        as_many = "actor_rollout_ref.rollout.val_kwargs.n=${actor_rollout_ref.rollout.n}"
        config = configuration(*GUARDED, *UNGUARDED_FUNCTION, *given, as_many, *overrides)
        loops.append(RewardLoopManager(config))
        return loops[-1]

    yield start
    for loop in loops:
        for worker in loop.reward_loop_workers:
            ray_cluster.kill(worker)
    with contextlib.suppress(ValueError):  # none was started, or it is already closing
        ray_cluster.kill(ray_cluster.get_actor(NAME))
    while any(n.startswith(("reward", NAME)) for n in ray_cluster.util.list_named_actors()):
        time.sleep(0.05)
