"""The code of docs/genrl.md, run unchanged."""

import re
import tempfile
from pathlib import Path

import hivemind
from genrl.rewards.reward_store import RewardFnStore, RoundRewardFnStore
from genrl.trainer.grpo_trainer import GRPOTrainerConfig

from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.nodes.identity.keys import SigningKey
from tests.genrl.one_round import TOKENIZER, NoModel, OneProblem, Peers, tree
from tests.genrl.swarm.node import correct

PAGE = (Path(__file__).parents[2] / "docs" / "genrl.md").read_text(encoding="utf-8")


def test_page_runs_unchanged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    key = SigningKey.new()
    key.write("node.key")
    Path("nodes.keys").write_text(f"alice {key.public}\n")
    config = GRPOTrainerConfig(
        num_generations=4, max_new_tokens=16, enable_gradient_checkpointing=False
    )
    names = {
        "trainer": NoModel(), "rounds": 2, "data_manager": OneProblem(), "config": config,
        "reward_store": RewardFnStore(2, [RoundRewardFnStore(1, [correct])]),
        "communication": Peers({"bob": tree()}), "model": load_bundled()[0],
        "tokenizer": TOKENIZER,
    }  # fmt: skip
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    blocks = [text for _, text in re.findall(r"^```(python)\n(.*?)^```$", PAGE, re.M | re.S)]
    assert len(blocks) == 4
    for block in blocks:
        exec(block, names)  # noqa: S102
    assert names["game"].state.round == 2
    assert "guard/trees/admitted" in names["game"].trainer.logged
    assert names["sampling"].max_new_tokens == 16
    assert hivemind.get_dht_time is hivemind.utils.get_dht_time
    assert (tmp_path / "guard-state").is_dir()
