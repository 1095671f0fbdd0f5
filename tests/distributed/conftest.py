"""One Ray instance for a module's tests; each test starts its own workers in it."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package")
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'grpo-guard[ray]'")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
