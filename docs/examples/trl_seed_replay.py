"""GRPOTrainer where each node owes one fixed completion per slot and cannot choose among samples.

    python docs/examples/trl_seed_replay.py --steps 8   # bundled policy, half a minute on a CPU

Three nodes with the same weights answer the same prompts: "alice" is this process, "bob" an honest
peer, and "mallory" sends the longest of eight samples, each of them perfectly probable. The coin
fixes a seed for every (run, round, node, slot, prompt); only what it leads to may earn a reward.

To make it yours, replace `exchange` by your network, and NODES, SAMPLING and TASK by your swarm's.
One process only: with several, a group may straddle ranks, and a row's place does not say its turn.
"""

import argparse
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from grpo_guard import Completion, Policy, SamplingSpec, SeedReplayVerifier, guard
from grpo_guard.core.verdict import Verdict
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS
from grpo_guard.evals.tasks.word_problems import WordProblems
from grpo_guard.logprob.coin import PublicCoin
from grpo_guard.logprob.replay.generate import generate_under_coin

NODES = ("alice", "bob", "mallory")  # fixed when a node joins: another name is another draw
ME = "alice"
SLOTS = 2  # completions that each node owes for each prompt
GROUP = len(NODES) * SLOTS
LIMIT = 64  # tokens; without it a node could stop wherever it likes
SAMPLING = SamplingSpec("transformers", temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=LIMIT)
COIN = PublicCoin("word-problems-1")  # public; its `beacons` stop nodes from looking rounds ahead
TASK = WordProblems()

Ids = Sequence[int]


class Turn(NamedTuple):
    """One completion that a round asks for."""

    node: str
    slot: int
    prompt: str


def make_rollout(verifier: SeedReplayVerifier) -> Callable[[list[str], Any], dict[str, list[Any]]]:
    """TRL's `rollout_func`: draw what is ours to draw, and collect what the peers have sent."""

    def rollout(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        model, tokenizer = trainer.model, trainer.processing_class
        training = model.training
        model.eval()  # dropout would be noise that no seed explains
        # A round is verified with the very weights that drew it: TRL calls this function and then
        # the rewards in one go, and steps the optimizer afterwards, whatever steps_per_generation
        # and num_iterations are. Generating a round ahead would break that.
        round = trainer.state.global_step
        verifier.begin_round(round, prompts=list(dict.fromkeys(prompts)))
        # TRL repeats each prompt for its group, so a row's place says whose turn it is.
        turns = [Turn(NODES[i % GROUP // SLOTS], i % SLOTS, p) for i, p in enumerate(prompts)]
        arrived = draw(model, tokenizer, round, [turn for turn in turns if turn.node == ME])
        theirs = exchange(model, tokenizer, round, [turn for turn in turns if turn.node != ME])
        arrived |= {turn: ids for turn, ids in theirs.items() if bearable(model, ids)}
        # The batch must be full. An EOS without a slot replaces what did not arrive;
        # the guard rejects it, and TRL leaves it out of its group.
        ids = [list(arrived.get(turn, [tokenizer.eos_token_id])) for turn in turns]
        prompt_ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
        logprobs = [log_probs(model, p, c) for p, c in zip(prompt_ids, ids, strict=True)]
        model.train(training)
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": ids,
            "logprobs": logprobs,
            "node": [turn.node for turn in turns],
            "slot": [turn.slot if turn in arrived else None for turn in turns],
        }

    return rollout


def draw(model: Any, tokenizer: Any, round: int, turns: Sequence[Turn]) -> dict[Turn, Ids]:
    """The one completion that the coin leads to, for each turn."""
    ids = [tokenizer(turn.prompt)["input_ids"] for turn in turns]
    seeds = [COIN.seed(round=round, node=t.node, slot=t.slot, prompt=t.prompt) for t in turns]
    drawn = generate_under_coin(model, ids, seeds, SAMPLING, eos_ids=[tokenizer.eos_token_id])
    return dict(zip(turns, drawn, strict=True))


def bearable(model: Any, ids: Ids) -> bool:
    """Whether the trainer survives it; what would stop the run before the guard never came."""
    vocabulary = range(model.get_input_embeddings().num_embeddings)
    return 0 < len(ids) <= LIMIT and all(isinstance(i, int) and i in vocabulary for i in ids)


@torch.no_grad()
def log_probs(model: Any, prompt_ids: Ids, completion_ids: Ids) -> list[float]:
    """Log-probs under SAMPLING, computed here for peers' rows too: theirs would be claims.

    Without top-k, top-p and min-p that is the softmax of logits / temperature, as in TRL's loss.
    Without vLLM, TRL reads them for `off_policy_mask_threshold` only; else None saves this pass.
    """
    ids = torch.tensor([[*prompt_ids, *completion_ids]], device=model.device)
    logits = model(input_ids=ids, logits_to_keep=len(completion_ids) + 1).logits[0, :-1]
    of_all = (logits.float() / SAMPLING.temperature).log_softmax(-1)
    found: list[float] = of_all.gather(-1, ids[0, len(prompt_ids) :, None])[:, 0].tolist()
    return found


def exchange(model: Any, tokenizer: Any, round: int, turns: Sequence[Turn]) -> dict[Turn, Ids]:
    """Stands for the network: what the peers sent. Both are played here, with our own weights."""
    bob = [turn for turn in turns if turn.node == "bob"]
    lost = 1 if round == 0 else 0  # of Bob's first round one completion never arrives
    sent = draw(model, tokenizer, round, bob[lost:])
    mallory = [turn for turn in turns if turn.node == "mallory"]
    for other in range(1, 9):  # seeds of rounds to come, as good as any
        sample = draw(model, tokenizer, round + other, mallory)
        sent |= {turn: max(sent.get(turn, ()), ids, key=len) for turn, ids in sample.items()}
    return sent


class Tally:
    """The guard's ledger: what became of each node's completions, and which slots stayed empty."""

    def __init__(self, verifier: SeedReplayVerifier) -> None:
        self.verifier = verifier
        self.counts: dict[str, Counter[str]] = {node: Counter() for node in NODES}

    def record(self, batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> None:
        for completion, verdict in zip(batch, verdicts, strict=True):
            if completion.slot is not None:  # else it stands for one that never came
                self.counts[str(completion.node)][verdict.outcome.value] += 1
        # Who withholds what it dislikes chooses as well. Rejected completions fill no slot either.
        for empty in self.verifier.slots.missing():
            self.counts[empty.node]["empty"] += 1


def train(model: Any, tokenizer: Any, steps: int) -> Tally:
    # The verifier gets the object that is trained, not a copy that training leaves behind.
    verifier = SeedReplayVerifier(
        model, tokenizer, sampling=SAMPLING, coin=COIN, slots=SLOTS, nodes=NODES
    )
    tally = Tally(verifier)

    @guard(verifier, policy=Policy(on_reject="drop"), ledger=tally)
    def reward(completions: list[str], answer: list[str], **kwargs: Any) -> list[float]:
        return [TASK.reward(c, a) for c, a in zip(completions, answer, strict=True)]

    args = GRPOConfig(
        output_dir="trl-seed-replay",
        max_steps=steps,
        num_generations=GROUP,
        per_device_train_batch_size=2 * GROUP,  # two prompts
        max_completion_length=LIMIT,
        temperature=SAMPLING.temperature,  # of the loss; SAMPLING alone decides what is drawn
        learning_rate=1e-4,
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        save_strategy="no",
        report_to="none",
    )
    chance = random.Random(0)  # a dict, since a prompt that came twice would share its slots
    problems = {p.prompt: p.answer for p in (TASK.sample(chance) for _ in range(64))}
    data = Dataset.from_list([{"prompt": p, "answer": a} for p, a in problems.items()])
    rollout = make_rollout(verifier)
    GRPOTrainer(
        model, [reward], args, data, processing_class=tokenizer, rollout_func=rollout
    ).train()
    return tally


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=WORD_PROBLEMS, help="folder or model id")
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args(arguments)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    tally = train(model, AutoTokenizer.from_pretrained(options.model), options.steps)
    print("node      accepted  rejected  undecided  empty slots")
    for node, n in tally.counts.items():
        print(f"{node:8}{n['accept']:10}{n['reject']:10}{n['abstain']:11}{n['empty']:13}")


if __name__ == "__main__":
    main()
