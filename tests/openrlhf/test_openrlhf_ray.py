"""Two engines under the real Ray: groups stay whole when arguments pass through its store."""

import pytest

pytest.importorskip("openrlhf", reason="needs openrlhf: make test-openrlhf")

import ray

from tests.helpers.subprocesses import environment
from tests.openrlhf.openrlhf_parts import MAX_LENGTH, PROMPT, TOKENIZER, advantages_of, params


@pytest.mark.slow
def test_groups_stay_whole_in_each_engine(agent_file, monkeypatch):
    path = str(agent_file("on_reject='drop'"))
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="error")
    try:
        from tests.openrlhf.openrlhf_ray_engine import Worker

        engines = [Worker.remote(path, ("It is 7.", "Hail 7", "It is 8.")) for _ in range(2)]
        # As the trainer dispatches: one sampling-parameters object for all prompts, the same prompt
        # twice on one engine and once on the other.
        sampling = params()
        asked = [
            engine.generate_responses.remote(
                prompt=PROMPT, label="7", sampling_params=sampling, max_length=MAX_LENGTH,
                hf_tokenizer=TOKENIZER, num_samples=3, images=None,
            )
            for engine in (engines[0], engines[1], engines[0])
        ]  # fmt: skip
        groups = ray.get(asked, timeout=300)
        shown = [batch for engine in engines for batch in ray.get(engine.shown.remote())]
    finally:
        ray.shutdown()
    assert [len(batch) for batch in shown] == [3] * 3
    assert len({group for batch in shown for _, group, _ in batch}) == 3
    assert all([slot for _, _, slot in batch] == [0, 1, 2] for batch in shown)
    for responses in groups:
        found, _ = advantages_of(responses, "dr_grpo")
        assert sorted(found) == pytest.approx([-0.5, 0.0, 0.5], abs=1e-6)
