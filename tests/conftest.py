"""Tests draw keys that are the same in every run, and in CI the same examples."""

import importlib.util
import os
import random
import secrets
import sys

import pytest

if (profile := os.environ.get("HYPOTHESIS_PROFILE")) and importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    # "ci" draws the same examples in every run. Elsewhere each run draws new ones.
    settings.load_profile(profile)


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
