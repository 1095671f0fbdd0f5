"""A local judge server for the duration of a test."""

import pytest

from tests.judge.judge_server import judge_server


@pytest.fixture
def server():
    with judge_server() as server:
        yield server
