"""Models on a hub that cannot be reached: the guard file's error says so at once, and no secret."""

import pytest

from grpo_guard.config import ConfigError, GuardConfig
from grpo_guard.core.model_paths import missing

SAME = (
    "preset: same_weights\n"
    "sampling: {engine: transformers, temperature: 1.0, top_k: 50, top_p: 1.0}\n"
)


@pytest.fixture(autouse=True)
def online(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def test_hub_that_cannot_be_reached_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    said = "a model fetched before, got 'org/x' while http://127.0.0.1:9 cannot be reached"
    different = "preset: different_weights\n"
    for text in (
        f"{SAME}model: org/x",
        f"{different}reader: org/x",
        f"{different}tokenizer: org/x",
    ):
        with pytest.raises(ConfigError, match=said):
            GuardConfig.from_text(text, "guard.yaml").build()


def test_hubs_address_is_shown_without_its_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for address, shown in (
        ("http://user:secret@127.0.0.1:9/x?token=secret", "http://127.0.0.1:9 cannot be reached"),
        ("http://user:secret@[::/x", r"that cannot be read cannot be reached \(not an HTTP"),
    ):
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(ConfigError, match=shown) as caught:
            GuardConfig.from_text(f"{SAME}model: org/x", "guard.yaml").build()
        assert "secret" not in str(caught.value)


def test_offline_mode_never_asks_a_hub_for_a_missing_model(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="model fetched before, got 'org/x' while HF_HUB_OFFLINE"):
        GuardConfig.from_text(f"{SAME}model: org/x", "guard.yaml").build()
    assert missing("gpt2") is not None
    (tmp_path / "models--org--x").mkdir()
    (tmp_path / "models--mine").mkdir()
    assert missing("org/x") is None
    assert missing("mine") is None
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert missing("gpt2") is None
    assert missing("other/y") is None
