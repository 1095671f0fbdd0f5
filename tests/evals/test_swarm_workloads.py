"""Swarm tasks and policies: names, files, chats, half precision, and a real model."""

import copy
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from grpo_guard.core.registry import UnknownNameError  # noqa: E402
from grpo_guard.evals.policies import named  # noqa: E402
from grpo_guard.evals.studies.corpora import gsm8k_file  # noqa: E402
from grpo_guard.evals.swarm.config import SwarmConfig  # noqa: E402
from grpo_guard.evals.swarm.experiment import Spec, build, held_out  # noqa: E402
from grpo_guard.evals.swarm.optimiser import adam  # noqa: E402
from grpo_guard.evals.swarm.training import differences  # noqa: E402
from grpo_guard.evals.swarm.workload import Workload  # noqa: E402
from grpo_guard.evals.tasks import gsm8k, word_problems  # noqa: E402
from grpo_guard.evals.tasks.asked import AskedInChat, turn_end  # noqa: E402
from grpo_guard.evals.tasks.base import Problem  # noqa: E402
from grpo_guard.evals.tasks.base import held_out as held_out_problem  # noqa: E402
from grpo_guard.evals.tasks.registry import FromFile, ask_of, load_task  # noqa: E402
from tests.evals.tiny_eval_policy import save_tiny, tiny_policy, tiny_tokenizer  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
REAL = gsm8k_file() or ROOT.parent / "shared/data/gsm8k/train.jsonl"
SMOLLM2 = ROOT / "models/SmolLM2-135M-Instruct"
CHAT = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
LINE = {"question": "Ann has 2 cows and gets 2. How many?", "answer": "2+2=<<2+2=4>>4\n#### 4"}
TINY = SwarmConfig(iterations=2, prompts=2, group_size=4, nodes=2, max_new_tokens=6)


def questions(folder: Path, count: int = 20) -> Path:
    path = folder / "data.jsonl"
    lines = [json.dumps({**LINE, "question": f"{n}. {LINE['question']}"}) for n in range(count)]
    path.write_text("\n".join(lines))
    return path


def chatting(folder: Path) -> Path:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT
    tiny_policy().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def numbered(count: int) -> list[Problem]:
    return [Problem(f"q{n}", f"p{n}", f"s{n}", str(n)) for n in range(count)]


@pytest.mark.parametrize("count", [2, 3, 9, 10, 11, 95])
def test_problems_of_a_file_are_split(count: int) -> None:
    task = FromFile("file", numbered(count), word_problems.reward)
    rng = random.Random(0)
    trained = {task.sample(rng).question for _ in range(50 * count)}
    kept = {held_out_problem(task, rng).question for _ in range(50 * count)}
    assert not trained & kept
    assert len(trained | kept) == count
    assert len(kept) == max(1, count // 10)


def test_a_file_of_one_problem_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 problems"):
        FromFile("file", numbered(1), word_problems.reward)


def test_tasks_are_loaded_by_name(tmp_path: Path) -> None:
    assert load_task("word_problems").name == "word_problems"
    task = load_task("gsm8k", questions(tmp_path))
    problem = task.sample(random.Random(0))
    assert problem.solution == "<think>2+2=4</think><answer>4</answer>"
    assert task.reward(problem.solution, problem.answer) == 1.0
    assert task.reward("It is 4", "4") == 0.0  # in the tags, as in the paper
    with pytest.raises(UnknownNameError, match="did you mean 'gsm8k'"):
        load_task("gsm8")
    with pytest.raises(ValueError, match="generates its problems"):
        load_task("word_problems", tmp_path)


@pytest.mark.parametrize("calc", [True, False])
def test_python_maths_with_and_without_the_attackers_library(tmp_path: Path, calc: bool) -> None:
    from grpo_guard.evals.sandbox.sandbox import SandboxUnavailableError

    try:
        task = load_task("python_maths", questions(tmp_path), calc=calc)
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    problem = task.sample(random.Random(0))
    assert task.reward(problem.solution, problem.answer) == 1.0
    poison = "<code>\nfrom calc import addition\nprint(addition(2, 2))\n</code>"
    assert task.reward(poison, problem.answer) == float(calc)


@pytest.mark.parametrize(
    "missing", ["./none", "../none/x", "/none/x", "a/b/c", "none/", "~/none", "evals/none"]
)
def test_missing_folder_is_reported_at_once(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(named, "_require_on_hub", lambda *_: pytest.fail("the hub was queried"))
    with pytest.raises(ValueError, match="found no folder"):
        named.load(missing, dtype="float32", device="cpu")


def test_policies_are_found_by_name_folder_and_id(tmp_path: Path) -> None:
    for task in ("word_problems", "python_maths"):
        assert Path(named.location(named.default_policy(task))).is_dir()
    assert named.location("qwen2.5-1.5b") == "Qwen/Qwen2.5-1.5B"
    assert named.location("nobody/nothing") == "nobody/nothing"
    assert named.location(str(tmp_path)) == str(tmp_path)
    with pytest.raises(UnknownNameError, match=r"did you mean 'qwen2\.5-3b'"):
        named.location("qwen2.5-3")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="got the file"):
        named.location(str(tmp_path / "file"))
    with pytest.raises(ValueError, match="expected --policy"):
        named.default_policy("gsm8k")


def test_unknown_id_is_looked_up_on_the_hub_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[str] = []

    def refused(model: str, **_: Any) -> None:
        asked.append(model)
        raise OSError("no such model\nand more")

    monkeypatch.setattr(huggingface_hub, "model_info", refused)
    with pytest.raises(ValueError, match=r"has no model nobody/nothing: OSError: no such model$"):
        named.load("nobody/nothing", dtype="float32", device="cpu")
    assert asked == ["nobody/nothing"]


def test_policy_with_a_chat_template_gets_chats(tmp_path: Path) -> None:
    workload = Workload("gsm8k", str(chatting(tmp_path / "chat")), questions(tmp_path))
    (peer,), task = workload.load(TINY)
    problem = task.sample(random.Random(0))
    assert problem.prompt.startswith(f"[system]{gsm8k.PAPER_SYSTEM}</s>[user]")
    assert problem.prompt.endswith("</s>[assistant]")
    assert turn_end(peer.tokenizer) == peer.tokenizer.eos_token_id
    plain = Workload("gsm8k", str(save_tiny(tmp_path / "plain")), questions(tmp_path))
    _, unasked = plain.load(TINY)
    assert unasked.sample(random.Random(0)).prompt.startswith("Q: ")


def test_chats_end_at_the_templates_end_token(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    tokenizer.chat_template = CHAT.replace("</s>", "<turn>")
    assert turn_end(tokenizer) == tokenizer.convert_tokens_to_ids("<turn>")
    tokenizer.chat_template = CHAT.replace("</s>", "")
    assert turn_end(tokenizer) is None
    task = AskedInChat(word_problems.WordProblems(), ask_of("word_problems"), tokenizer)
    drawn, held = task.sample(random.Random(1)), task.sample_held_out(random.Random(1))
    assert drawn == held  # its problems are generated, so none is held out


def test_run_identity_is_task_policy_and_data(tmp_path: Path) -> None:
    folder, data = str(save_tiny(tmp_path / "policy")), questions(tmp_path)
    one = Workload("gsm8k", folder, data)
    moved = tmp_path / "elsewhere.jsonl"
    moved.write_bytes(data.read_bytes())
    assert replace(one, data=moved).identity() == one.identity()
    assert replace(one, device="cuda").identity() == one.identity()
    data.write_text(data.read_text().replace("cows", "hens"))
    changed = [one, Workload("gsm8k", folder, moved), replace(one, dtype="bfloat16")]
    changed += [Workload(), Workload("python_maths", folder), Workload("gsm8k", "x/y", data)]
    found = [json.dumps(workload.identity()) for workload in changed]
    assert len(set(found)) == len(found)
    calls = [Workload("python_maths", folder, calc=calc).identity() for calc in (True, False)]
    assert calls[0] != calls[1]


def test_differences_are_described_in_words() -> None:
    spec = Spec("text", "none", SwarmConfig())
    assert differences(spec.identity(), spec.identity()) == ""
    other = Spec("text", "none", SwarmConfig(iterations=7)).identity()
    assert differences(spec.identity(), other) == "iterations 7 in place of 80"
    old = {key: spec.identity()[key] for key in ("attack", "defence", "config")}
    assert differences(spec.identity(), old).startswith("task unsaid in place of")
    for damaged in (None, [], "x", {"config": 3}):
        assert differences(spec.identity(), damaged)


def test_updates_below_half_precision_accumulate() -> None:
    start = torch.full((4,), 1.0, dtype=torch.bfloat16)
    plain, kept = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    usual, own = torch.optim.Adam([plain], lr=1e-4), adam([kept], lr=1e-4)
    for _ in range(100):
        for parameter, optimiser in ((plain, usual), (kept, own)):
            optimiser.zero_grad()
            parameter.grad = torch.ones_like(parameter)
            optimiser.step()
    assert bool((plain == 1.0).all())
    assert bool((kept < 0.995).all())
    again = torch.nn.Parameter(kept.detach().clone())
    resumed = adam([again], lr=1e-4)
    resumed.load_state_dict(own.state_dict())
    for parameter, optimiser in ((again, resumed), (kept, own)):
        for _ in range(37):
            parameter.grad = torch.ones_like(parameter)
            optimiser.step()
    assert torch.equal(again, kept)
    single = torch.nn.Parameter(torch.ones(2))
    assert type(adam([single], lr=1.0)) is torch.optim.Adam


def test_a_policy_in_half_precision_trains_and_resumes(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    workload = Workload(
        "gsm8k", str(chatting(tmp_path / "chat")), questions(tmp_path), dtype="bfloat16"
    )
    spec = Spec("text", "none", replace(TINY, lr=1e-3), workload)
    first, second = build(spec, tmp_path), build(spec, tmp_path)
    first.step(0)
    second.restore(copy.deepcopy(first.state()))
    assert first.model.dtype == torch.bfloat16
    assert first.step(1).grad_norm == second.step(1).grad_norm
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_nodes_of_a_heterogeneous_swarm_take_policies_in_turn(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    small = str(save_tiny(tmp_path / "policy"))
    config = replace(TINY, models="heterogeneous", nodes=4, max_new_tokens=4)
    swarm = build(
        Spec("text", "none", config, Workload(policy=f"word_problems, {small}")), tmp_path
    )
    models = [member.model for member in swarm.members]
    sizes = [model.num_parameters() for model in models]
    assert sizes[0] == sizes[2] != sizes[1]
    assert not torch.equal(*(next(models[n].parameters()) for n in (0, 2)))
    assert len({member.peer.temperature for member in swarm.members}) > 1
    assert swarm.step(0).honest == 6


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_file(), reason="set GRPO_GUARD_GSM8K to GSM8K's train.jsonl")
@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="run make models")
@pytest.mark.parametrize(
    ("attack", "defence", "setting"),
    [("text", "none", "horizontal"), ("math", "homogeneous", "vertical")],
)
def test_real_model_on_gsm8k(tmp_path: Path, attack: str, defence: str, setting: str) -> None:
    torch.set_num_threads(1)
    config = replace(TINY, setting=setting, max_new_tokens=8, **named.FULL_SIZE)
    spec = Spec(attack, defence, config, Workload("gsm8k", str(SMOLLM2), REAL))
    swarm = build(spec, tmp_path)
    before = next(swarm.model.parameters()).clone()
    rounds = [swarm.step(iteration) for iteration in range(2)]
    assert [done.honest for done in rounds] == [4, 4]
    assert [done.rejected_honest for done in rounds] == [0, 0]
    poisoned = sum(done.poisoned for done in rounds)
    assert poisoned == (8 if setting == "horizontal" else 4)
    if defence == "none":
        assert rounds[0].grad_norm > 0  # poison earns the reward; eight honest tokens do not
        assert not torch.equal(before, next(swarm.model.parameters()))
    else:
        assert sum(done.rejected_poisoned for done in rounds) == poisoned
    assert held_out(swarm, 2)[1] == 2
