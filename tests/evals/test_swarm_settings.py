"""Vertical and heterogeneous swarms, shared seeds, KL, and interrupted runs."""

import copy
import json
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from grpo_guard import SamplingSpec, SeedReplayVerifier  # noqa: E402
from grpo_guard.core.completion import Completion  # noqa: E402
from grpo_guard.core.verdict import Verdict, accept, reject  # noqa: E402
from grpo_guard.evals.attacks.registry import adversary  # noqa: E402
from grpo_guard.evals.attacks.text import TextAttack  # noqa: E402
from grpo_guard.evals.policies.bundled import load_bundled  # noqa: E402
from grpo_guard.evals.swarm import training  # noqa: E402
from grpo_guard.evals.swarm.config import SwarmConfig  # noqa: E402
from grpo_guard.evals.swarm.engine import DivergedError, Swarm  # noqa: E402
from grpo_guard.evals.swarm.generate import sample  # noqa: E402
from grpo_guard.evals.swarm.members import Peer  # noqa: E402
from grpo_guard.evals.swarm.record import Round  # noqa: E402
from grpo_guard.evals.swarm.session import Session  # noqa: E402
from grpo_guard.evals.swarm.training import CheckpointError, Interrupted, train  # noqa: E402
from grpo_guard.evals.tasks.word_problems import WordProblems, generate  # noqa: E402
from grpo_guard.logprob.coin import PublicCoin  # noqa: E402
from grpo_guard.logprob.replay.generate import generate_under_coin  # noqa: E402
from tests.evals.plain_guard import plain  # noqa: E402

TINY = {"iterations": 2, "prompts": 4, "group_size": 4, "max_new_tokens": 40}


@pytest.fixture
def bundled() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    return load_bundled()


def swarm_of(bundled: tuple[Any, Any], config: SwarmConfig, **options: Any) -> Swarm:
    attack = TextAttack() if config.malicious else None
    peers = [Peer(*bundled), *options.pop("others", ())]
    return Swarm(peers, WordProblems(), config, **({"attack": attack} | options))


def counted(config: SwarmConfig, guard: "Counter | None" = None) -> Swarm:
    chosen = guard or Counter()
    return swarm_of(load_bundled(), config, guard_in=lambda peer, folder: chosen)


def played(swarm: Swarm) -> list[Round]:
    return [swarm.step(iteration) for iteration in range(swarm.config.iterations)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"malicious": 5}, "malicious"),
        ({"setting": "diagonal"}, "setting: expected one of horizontal, vertical"),
        ({"models": "mixed"}, "models"),
        ({"setting": "vertical", "prompts": 6}, "prompts: expected a multiple of nodes"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": 1, "malicious": 0, "group_size": 1}, "group_size"),
        ({"kl_beta": -1.0}, "kl_beta"),
        ({"lr": float("nan")}, "lr"),
        ({"leaves": 0}, "leaves: expected 1 to 79 of 80 rounds, got 0"),
        ({"leaves": 80}, "leaves: expected 1 to 79"),
        ({"guard_from": 80}, "guard_from: expected 0 to 79 of 80 rounds, got 80"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SwarmConfig(**settings)


def test_vertical_groups_belong_to_one_node(bundled: tuple[Any, Any]) -> None:
    config = SwarmConfig(**TINY, setting="vertical")
    submitted, asked = swarm_of(bundled, config).exchange(0)
    assert len(submitted) == 16
    assert len(asked) == 3
    nodes = [[s.completion.node for s in submitted[g * 4 : g * 4 + 4]] for g in range(4)]
    assert nodes == [[f"node-{g}"] * 4 for g in range(4)]
    assert len({s.completion.prompt for s in submitted}) == 4
    attackers = submitted[12:]
    assert [s.poisoned for s in attackers] == [True, True, False, False]
    assert all(s.malicious for s in attackers)


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["horizontal", "vertical"])
def test_nodes_that_left_send_nothing_and_success_is_still_measured(
    bundled: tuple[Any, Any], setting: str
) -> None:
    class AlwaysThere(TextAttack):
        def success(self, text: str) -> bool:
            return True

    config = SwarmConfig(**TINY | {"iterations": 3}, leaves=1, setting=setting)
    rounds = played(swarm_of(bundled, config, attack=AlwaysThere()))
    assert [done.poisoned for done in rounds] == [4 if setting == "horizontal" else 2, 0, 0]
    assert [done.withheld for done in rounds] == [0, 4, 4]
    assert [done.honest for done in rounds] == [12, 12, 12]
    assert [done.asr for done in rounds] == [1.0, 1.0, 1.0]


@pytest.mark.slow
def test_a_guard_judges_nothing_before_it_is_switched_on(bundled: tuple[Any, Any]) -> None:
    def guard_in(peer: Peer, folder: Path) -> Any:
        return plain(lambda batch: [reject("all")] * len(batch))

    config = SwarmConfig(**TINY | {"iterations": 3}, guard_from=2)
    rounds = played(swarm_of(bundled, config, guard_in=guard_in))
    assert [done.rejected_poisoned for done in rounds] == [0, 0, 4]
    assert [done.rejected_honest for done in rounds] == [0, 0, 12]


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "malicious"), [(2, 1), (4, 3), (12, 1)])
def test_any_share_of_malicious_nodes(bundled: tuple[Any, Any], nodes: int, malicious: int) -> None:
    config = SwarmConfig(
        prompts=2, group_size=12, nodes=nodes, malicious=malicious, max_new_tokens=8, iterations=1
    )
    done = swarm_of(bundled, config).step(0)
    assert done.poisoned == 2 * 12 * malicious // nodes
    assert done.honest == 24 - done.poisoned


def test_few_honest_completions_leave_one_probe_each(
    bundled: tuple[Any, Any],
) -> None:
    config = SwarmConfig(
        prompts=8, group_size=4, nodes=8, malicious=7, setting="vertical", max_new_tokens=8,
        iterations=1,
    )  # fmt: skip
    done = swarm_of(bundled, config, attack=adversary("math")).step(0)
    assert done.honest == 4
    assert 0 <= done.asr <= 1


@pytest.mark.slow
def test_heterogeneous_nodes_learn_separately(bundled: tuple[Any, Any]) -> None:
    others = [Peer(copy.deepcopy(bundled[0]), bundled[1], 0.8) for _ in range(2)]
    config = SwarmConfig(**TINY, models="heterogeneous")
    asked: list[int] = []

    def guard(batch: list[Completion]) -> list[Verdict]:
        asked.append(len(batch))
        return [accept("a") for _ in batch]

    swarm = swarm_of(bundled, config, others=others, guard_in=lambda peer, folder: plain(guard))
    rounds = played(swarm)
    assert asked == [16] * 6  # each of three nodes runs its own guard
    assert rounds[0].honest == 12
    assert [member.nodes for member in swarm.members] == [(0,), (1,), (2,)]
    weights = [next(member.model.parameters()) for member in swarm.members]
    # The same completions and rewards, so the same update; only what they sample differs.
    torch.testing.assert_close(weights[0], weights[1])


@pytest.mark.slow
def test_each_heterogeneous_node_uses_its_own_guard(
    bundled: tuple[Any, Any], tmp_path: Path
) -> None:
    others = [Peer(copy.deepcopy(bundled[0]), bundled[1]) for _ in range(2)]
    strict = others[0]

    def guard_in(peer: Peer, folder: Path) -> Any:
        verdict = reject("r") if peer is strict else accept("a")
        return plain(lambda batch: [verdict for _ in batch])

    before = next(strict.model.parameters()).clone()
    config = SwarmConfig(**TINY, models="heterogeneous")
    done = swarm_of(bundled, config, others=others, guard_in=guard_in, folder=tmp_path).step(0)
    torch.testing.assert_close(next(strict.model.parameters()), before)
    assert done.rejected_by == (0, 12, 0)
    assert done.rejected_honest == 0


def test_models_must_fit_the_configuration(bundled: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="peers: expected 3 models"):
        swarm_of(bundled, SwarmConfig(**TINY, models="heterogeneous"))
    with pytest.raises(ValueError, match="peers: expected 1"):
        swarm_of(bundled, SwarmConfig(**TINY), others=[Peer(*bundled)])


def test_shared_seed_sampling_matches_the_library(bundled: tuple[Any, Any]) -> None:
    model, tokenizer = bundled
    prompts = [problem.prompt for problem in generate("coin", 3)]
    coin = PublicCoin("run")
    seeds = [coin.seed(round=0, node="n", slot=k, prompt=p) for p in prompts for k in range(2)]
    spec = SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=24)
    ids = [tokenizer.encode(p, add_special_tokens=False) for p in prompts for _ in range(2)]
    wanted = generate_under_coin(model, ids, seeds, spec, eos_ids=[tokenizer.eos_token_id])
    ours = sample(
        model, tokenizer, prompts, 2, generator=torch.Generator(), max_new_tokens=24, seeds=seeds
    )
    assert [one.ids for one in ours] == wanted


def test_replay_accepts_the_swarms_own_completions(bundled: tuple[Any, Any]) -> None:
    coin = PublicCoin("swarm")
    config = SwarmConfig(**TINY)
    submitted, asked = swarm_of(bundled, config, coin=coin).exchange(0)
    spec = SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=40)
    verifier = SeedReplayVerifier(
        *bundled, sampling=spec, coin=coin, slots=1, nodes=config.node_names, profile="float32"
    )
    verifier.begin_round(0, asked)
    verdicts = verifier.verify([item.completion for item in submitted])
    assert [v.accepted for v in verdicts] == [not item.poisoned for item in submitted]


@pytest.mark.slow
def test_kl_holds_the_policy_back(bundled: tuple[Any, Any]) -> None:
    moved = []
    for beta in (0.0, 10.0):
        model = copy.deepcopy(bundled[0])
        before = torch.cat([p.detach().flatten() for p in model.parameters()])
        config = SwarmConfig(**TINY | {"iterations": 4}, kl_beta=beta)
        played(swarm_of((model, bundled[1]), config))
        after = torch.cat([p.detach().flatten() for p in model.parameters()])
        moved.append(float((after - before).norm()))
    assert 0 < moved[1] < moved[0]


class Counter:
    """A guard with state."""

    def __init__(self) -> None:
        self.rounds = 0

    def begin(self, round: int, prompts: Any) -> None:
        self.rounds += 1

    def review(self, batch: list[Completion]) -> Any:
        from grpo_guard.guard import Review

        return Review([reject("r") if c.node == "node-3" else accept("a") for c in batch], {})

    def excluded(self) -> tuple[str, ...]:
        return ("node-3",)

    def state(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def restore(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


def figures(rows: list[dict[str, Any]]) -> list[Any]:
    rows = json.loads(json.dumps(rows))
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]


@pytest.mark.slow
def test_interrupted_run_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    config = SwarmConfig(**TINY | {"iterations": 5})
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    expected, examples = train(
        swarm_of(load_bundled(), config, guard_in=lambda peer, folder: Counter()),
        whole,
        identity={},
    )
    assert examples[0]["node"] == "node-3"
    stop = threading.Event()

    def interrupt(row: dict[str, Any]) -> None:
        if row["iteration"] == 2:
            stop.set()

    with pytest.raises(Interrupted):
        train(counted(config), cut, identity={"a": 1}, on_round=interrupt, stop=stop)
    guard = Counter()
    rows, _ = train(counted(config, guard), cut, identity={"a": 1})
    assert figures(rows) == figures(expected)
    assert guard.rounds == 5
    events = [json.loads(line) for line in (cut / "events.jsonl").read_text().splitlines()]
    names = [event["event"] for event in events]
    assert names == [
        "started",
        *["round"] * 3,
        "interrupted",
        "resumed",
        *["round"] * 2,
        "finished",
    ]


def test_a_checkpoint_of_another_run_is_refused(bundled: tuple[Any, Any], tmp_path: Path) -> None:
    swarm = swarm_of(bundled, SwarmConfig(**TINY | {"iterations": 1}))
    train(swarm, tmp_path, identity={"seed": 0}, every=1)
    with pytest.raises(CheckpointError, match="seed 0 in place of 1"):
        train(swarm, tmp_path, identity={"seed": 1})
    (tmp_path / "checkpoint.pt").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="delete it"):
        train(swarm, tmp_path, identity={"seed": 0})


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_checkpoint(
    bundled: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = swarm_of(bundled, SwarmConfig(**TINY))
    real, calls = torch.save, []

    def full(data: Any, file: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            file.write(b"half of it")
            raise OSError(28, "No space left on device")
        real(data, file)

    monkeypatch.setattr(training.torch, "save", full)
    with pytest.raises(OSError, match="No space"):
        train(swarm, tmp_path, identity={}, every=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.pt", "events.jsonl"]
    fresh = swarm_of(load_bundled(), SwarmConfig(**TINY))
    rows, _ = train(fresh, tmp_path, identity={}, every=5)
    assert len(rows) == 2


@pytest.mark.slow
def test_problems_do_not_depend_on_the_attack(bundled: tuple[Any, Any]) -> None:
    attacked, _ = swarm_of(bundled, SwarmConfig(**TINY)).exchange(1)
    free, _ = swarm_of(bundled, SwarmConfig(**TINY, malicious=0)).exchange(1)
    assert [s.completion.prompt for s in attacked] == [s.completion.prompt for s in free]


class Apart(Session):
    """Nodes that share no objects, as on Ray."""

    remote = True

    def start(self, name: str, kind: type, *args: Any, **kwargs: Any) -> None:
        super().start(name, kind, *copy.deepcopy(args), **kwargs)

    def call(self, name: str, method: str, *args: Any) -> Any:
        return copy.deepcopy(super().call(name, method, *copy.deepcopy(args)))


@pytest.mark.slow
def test_nodes_without_shared_objects_play_the_same_rounds(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    config = SwarmConfig(**TINY | {"nodes": 2, "max_new_tokens": 16})

    def made(folder: str, **options: Any) -> Swarm:
        return swarm_of(
            load_bundled(), config, attack=adversary("reward_selection"),
            folder=tmp_path / folder, guard_in=lambda peer, folder: Counter(), **options,
        )  # fmt: skip

    def row(swarm: Swarm, iteration: int) -> list[Any]:
        return figures([training.row_of(swarm.step(iteration))])

    here, there, later = made("here"), made("a", session=Apart()), made("b", session=Apart())
    assert row(here, 0) == row(there, 0)
    later.restore(here.state())
    here.restore(there.state())
    assert row(here, 1) == row(there, 1) == row(later, 1)
    pairs = zip(here.model.parameters(), later.model.parameters(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
    assert all((tmp_path / name).is_dir() for name in ("a", "b", "here"))


def test_disagreement_between_nodes_of_one_model_stops_the_run() -> None:
    config = SwarmConfig(**TINY | {"nodes": 2, "malicious": 0, "max_new_tokens": 8})
    swarm = swarm_of(load_bundled(), config, session=Apart())
    for norm, node in enumerate(swarm.members, 1):
        node.update = lambda *_, norm=norm: float(norm)
    with pytest.raises(DivergedError, match="node-1: expected the update of node-0"):
        swarm.step(0)
