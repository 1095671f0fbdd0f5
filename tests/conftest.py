"""Tests draw keys that are the same in every run, and in CI the same examples; long files first."""

import importlib.util
import os
import random
import secrets
import sys

import pytest

# No test fetches a model from a hub. Set for all, and before any library reads it, so that what a
# test finds does not depend on which others ran before it in the same process.
os.environ["HF_HUB_OFFLINE"] = "1"

if (profile := os.environ.get("HYPOTHESIS_PROFILE")) and importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    # "ci" draws the same examples in every run. Elsewhere each run draws new ones.
    settings.load_profile(profile)


# Files take turns on the workers, so the longest begin first: at the end none waits for one.
LONGEST = (
    "trl/test_trl_math_verify.py", "workers/test_workers.py", "logprob/test_sampling_mask.py",
    "reader/test_foreignness.py", "workers/test_read_early.py",
    "adapters/test_math_verify.py", "judge/test_judge_faults.py", "evals/test_incidents.py",
    "workers/test_worker_processes.py", "adapters/test_hostile_numbers.py",
    "evals/test_swarm_cli.py", "docs/test_quickstart.py", "evals/test_own_guard.py",
    "trl/test_watching_trl.py", "trl/test_trl_trainer.py", "server/test_server_streams.py",
    "core/test_grader_pool.py", "reader/test_hostile_authors.py", "logprob/test_share.py",
)  # fmt: skip


def pytest_configure(config):
    if hasattr(config.option, "loadscopereorder"):  # by number of tests, which says little
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    places = {os.path.join(os.path.dirname(__file__), name): i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(str(item.path), len(LONGEST)))


@pytest.fixture(autouse=True)
def same_keys_in_every_run(monkeypatch, request):
    """Tail masses are made uniform by a secret key, so that one honest completion of a thousand is
    rejected at alpha = 0.001. In a test with a key of its own it is the same one each time.

    Everything else that asks for secrets gets real ones, such as names of sockets.
    """
    drawn, real = random.Random(request.node.nodeid), secrets.token_bytes

    def token_bytes(count=32):
        asked_by = sys._getframe(1).f_globals.get("__name__", "")
        return (drawn.randbytes if asked_by == "grpo_guard.logprob.bounds" else real)(count)

    monkeypatch.setattr(secrets, "token_bytes", token_bytes)
