"""The verl releases that manager and hook support, and where old configurations point."""

import importlib.metadata

import pytest

from grpo_guard.adapters.releases import require_release
from grpo_guard.guard.framework import FrameworkError


@pytest.mark.parametrize("version", ["0.8.0", "0.8.0.dev1", "0.1", "0.9.0"])
def test_too_old_release_is_refused_with_the_required_one(monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(FrameworkError, match=r"need verl >= 0\.9\.1"):
        require_release("verl")


@pytest.mark.parametrize("version", ["0.9.1", "0.10.0", "1.0", "unknown"])
def test_supported_releases_are_accepted(monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    assert require_release("verl") is None


def test_missing_verl_gives_no_warning(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert require_release("verl") is None
