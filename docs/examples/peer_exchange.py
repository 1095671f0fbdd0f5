"""A swarm that exchanges completions as JSON Lines: read, verified under a public coin, trained on.

    python docs/examples/peer_exchange.py --rounds 2 --exchange DIR   # bundled policy, on a CPU

Each node writes DIR/ROUND/NODE.jsonl, one completion a line::

    {"prompt": 0, "slot": 1, "completion_ids": [17, 4, ...]}

``prompt`` is a place in the round's list, which all nodes draw alike; ``slot`` counts the node's
answers to it. Nothing else is taken from a message: the transport names the sender (here the
file's name), text is decoded from the ids, prompts and references are our own. A line of another
form counts against its sender and is reported with its place; the other lines are not lost.

"alice" is this process and "bob" an honest peer whose last line is cut off on the way. "mallory"
sends the longest of eight samples, and a line in bob's name. Both peers are played here; to make it
yours, let your transport write the files and leave `play_peers` out.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from plain_grpo import TASK, Tally, accumulate

from grpo_guard import Completion, Guard, Policy, SamplingSpec, SeedReplayVerifier
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.tasks.base import Problem
from grpo_guard.logprob.coin import PublicCoin
from grpo_guard.logprob.replay.generate import generate_under_coin

NODES = ("alice", "bob", "mallory")  # fixed when a node joins: another name is another draw
PROMPTS, SLOTS = 2, 2  # per round; answers that each node owes for each prompt
LIMIT = 64  # tokens
SAMPLING = SamplingSpec("transformers", temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=LIMIT)
COIN = PublicCoin("peer-exchange")  # public; its `beacons` stop nodes from looking rounds ahead
MOST_LINES, MOST_BYTES = 4 * PROMPTS * SLOTS, 64 * LIMIT  # per file, per line

Place = tuple[int, int]  # prompt, slot
PLACES = [(prompt, slot) for prompt in range(PROMPTS) for slot in range(SLOTS)]


def read_peer(
    stream: BinaryIO, vocabulary: int
) -> Iterator[tuple[int, tuple[Place, list[int]] | str]]:
    """(line number, what the line says, or what is wrong with it) for every line of a peer's file.

    A peer that sends without end is stopped: the last complaint says that the rest was not read.
    """
    for number in range(1, MOST_LINES + 1):
        line = stream.readline(MOST_BYTES + 1)
        if not line:
            return
        if len(line) > MOST_BYTES:
            yield number, f"longer than {MOST_BYTES} bytes; the rest of the file was not read"
            return
        try:
            yield number, parse(json.loads(line), vocabulary)
        except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or `parse` says what
            yield number, f"{error!s:.80}"
    if stream.read(1):
        yield MOST_LINES + 1, f"more than {MOST_LINES} lines; the rest of the file was not read"


def parse(message: Any, vocabulary: int) -> tuple[Place, list[int]]:
    """Raises ValueError for anything but the three fields, in the form that is agreed upon.

    Ids that the trainer would not survive stop here, because it sees them before the guard does.
    """
    expected = {"prompt", "slot", "completion_ids"}
    if not isinstance(message, dict) or message.keys() != expected:
        raise ValueError(f"expected an object with {', '.join(sorted(expected))} alone")
    prompt, slot, ids = message["prompt"], message["slot"], message["completion_ids"]
    if not (is_index(prompt, PROMPTS) and is_index(slot, 2**31)):
        raise ValueError("expected prompt and slot as places")
    if not (isinstance(ids, list) and 0 < len(ids) <= LIMIT):
        raise ValueError(f"expected 1 to {LIMIT} completion_ids")
    if not all(is_index(token, vocabulary) for token in ids):
        raise ValueError("expected completion_ids within the vocabulary")
    return (prompt, slot), ids


def is_index(value: Any, end: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < end


class Node:
    """What one node does in each round: draw, send, receive, verify, learn."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.vocabulary = min(len(tokenizer), model.get_input_embeddings().num_embeddings)
        # The verifier gets the object that is trained, not a copy that training leaves behind.
        self.verifier = SeedReplayVerifier(
            model, tokenizer, sampling=SAMPLING, coin=COIN, slots=SLOTS, nodes=NODES
        )
        self.tally = Tally()
        self.guard = Guard(self.verifier, policy=Policy(on_reject="drop"), ledger=self.tally)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def draw(
        self, round: int, node: str, problems: Sequence[Problem], places: Sequence[Place] = PLACES
    ) -> dict[Place, list[int]]:
        """The one answer that the coin leads to, for each place."""
        prompts = [problems[prompt].prompt for prompt, _ in places]
        seeds = [
            COIN.seed(round=round, node=node, slot=slot, prompt=text)
            for (_, slot), text in zip(places, prompts, strict=True)
        ]
        ids = [self.tokenizer(text)["input_ids"] for text in prompts]
        eos = [self.tokenizer.eos_token_id]
        drawn = generate_under_coin(self.model, ids, seeds, SAMPLING, eos_ids=eos)
        return {place: list(row) for place, row in zip(places, drawn, strict=True)}

    def receive(
        self, folder: Path, round: int, problems: Sequence[Problem]
    ) -> tuple[list[Completion], list[str]]:
        """Completions of all peers, and what was wrong with the other lines."""
        batch, complaints = [], []
        for path in sorted(folder.iterdir()):
            if path.suffix != ".jsonl" or path.stem not in NODES[1:] or not path.is_file():
                complaints.append(f"{path.name!r}: no file of a peer")
                continue
            with path.open("rb") as stream:
                for number, found in read_peer(stream, self.vocabulary):
                    if isinstance(found, str):
                        self.tally.counts[path.stem, "malformed"] += 1
                        complaints.append(f"{path.name}:{number}: {found}")
                    else:
                        batch.append(self.completion(round, path.stem, problems, *found))
        return batch, complaints

    def completion(
        self, round: int, node: str, problems: Sequence[Problem], place: Place, ids: Sequence[int]
    ) -> Completion:
        problem = problems[place[0]]
        return Completion(
            problem.prompt,
            self.tokenizer.decode(ids, skip_special_tokens=True),
            prompt_ids=self.tokenizer(problem.prompt)["input_ids"],
            completion_ids=tuple(ids),
            node=node,
            group=place[0],
            round=round,
            slot=place[1],
            reference=problem.answer,
        )

    def learn(self, round: int, problems: Sequence[Problem], batch: Sequence[Completion]) -> None:
        """Verify all that has arrived with the weights that drew it, then one step on it."""
        self.verifier.begin_round(round, prompts=[problem.prompt for problem in problems])
        rewards = self.guard.apply([TASK.reward(c.text, str(c.reference)) for c in batch], batch)
        for empty in self.verifier.slots.missing():  # who withholds what it dislikes chooses, too
            self.tally.counts[empty.node, "empty"] += 1
        for prompt in range(len(problems)):
            rows = [i for i, c in enumerate(batch) if c.group == prompt]
            accumulate(self.model, [batch[i] for i in rows], [rewards[i] for i in rows])
        self.optimizer.step()
        self.optimizer.zero_grad()


def play_peers(node: Node, folder: Path, round: int, problems: Sequence[Problem]) -> None:
    """Stands for the network: what bob and mallory have sent, and what became of it on the way."""
    folder.mkdir(parents=True, exist_ok=True)
    bob = lines(node.draw(round, "bob", problems))
    (folder / "bob.jsonl").write_text("".join(bob)[:-9], encoding="utf-8")
    longest: dict[Place, list[int]] = {}
    for other in range(1, 9):  # seeds of rounds to come, as good as any
        for place, ids in node.draw(round + other, "mallory", problems).items():
            longest[place] = max(longest.get(place, []), ids, key=len)
    forged = json.dumps({"node": "bob", "prompt": 0, "slot": 0, "completion_ids": [1]}) + "\n"
    sent = [*lines(longest), forged]
    (folder / "mallory.jsonl").write_text("".join(sent), encoding="utf-8")


def lines(drawn: Mapping[Place, Sequence[int]]) -> list[str]:
    return [
        json.dumps({"prompt": prompt, "slot": slot, "completion_ids": list(ids)}) + "\n"
        for (prompt, slot), ids in drawn.items()
    ]


def problems_of(round: int) -> list[Problem]:
    """The round's prompts, the same for every node; one that came twice would share its slots."""
    chance = random.Random(f"{COIN.run}:{round}")
    distinct: dict[str, Problem] = {}
    while len(distinct) < PROMPTS:
        problem = TASK.sample(chance)
        distinct.setdefault(problem.prompt, problem)
    return list(distinct.values())


def main(arguments: Sequence[str] | None = None) -> Counter[tuple[str, str]]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--exchange", type=Path, default=Path("peer-exchange"))
    options = parser.parse_args(arguments)
    node = Node(*load_bundled())
    for round in range(options.rounds):
        problems, folder = problems_of(round), options.exchange / str(round)
        own = node.draw(round, "alice", problems)
        play_peers(node, folder, round, problems)
        received, complaints = node.receive(folder, round, problems)
        for complaint in complaints:
            print(f"round {round}: {complaint}", flush=True)
        batch = [node.completion(round, "alice", problems, *drawn) for drawn in own.items()]
        node.learn(round, problems, batch + received)
    print("node      accepted  rejected  undecided  malformed  empty slots")
    for name in NODES:
        n = [node.tally.counts[name, k] for k in ("accept", "reject", "abstain", "malformed")]
        empty = node.tally.counts[name, "empty"]
        print(f"{name:8}{n[0]:10}{n[1]:10}{n[2]:11}{n[3]:11}{empty:13}")
    return node.tally.counts


if __name__ == "__main__":
    main()
