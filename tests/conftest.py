"""Tests draw keys that are the same in every run."""

import random
import secrets

import pytest


@pytest.fixture(autouse=True)
def same_keys_in_every_run(monkeypatch, request):
    """Tail masses are made uniform by a secret key, so that one honest completion of a thousand is
    rejected at alpha = 0.001. In a test with a key of its own it is the same one each time."""
    drawn = random.Random(request.node.nodeid)
    monkeypatch.setattr(secrets, "token_bytes", lambda count=32: drawn.randbytes(count or 32))
