"""Detection by log-probs under common samplers, per completion and per node with eight completions.

    python -m grpo_guard.evals.studies.samplers --sampler trl --data train.jsonl

Writes ``docs/results/samplers.json`` unless ``-o`` names another file. Foreign texts are inserted
at the start, in the middle and at the end of honest completions; the five `UNSEEN` texts were not
consulted when choosing the tests. A node's batch consists of eight completions to eight prompts;
batches are drawn repeatedly from the same completions.
"""

import logging
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.detect.config import DetectConfig, Loaded, load
from grpo_guard.evals.detect.honest import honest_completions
from grpo_guard.evals.detect.poison import with_ids
from grpo_guard.evals.studies import solutions
from grpo_guard.evals.studies.corpora import gsm8k_file
from grpo_guard.evals.studies.detection import MODEL
from grpo_guard.evals.studies.harness import CACHE, RESULTS, option, rate, rejected, say, study
from grpo_guard.evals.studies.shared_scores import SharedScores
from grpo_guard.evals.tasks import gsm8k
from grpo_guard.logprob.batch_evidence import batch_evidence
from grpo_guard.logprob.bounds import LogProbBoundVerifier
from grpo_guard.logprob.verifier import Scored
from grpo_guard.nodes.e_process import EProcess, log_threshold

LONGEST: Final = 96
SAMPLERS: Final[Mapping[str, SamplingSpec]] = {
    name: SamplingSpec(
        "transformers", temperature, top_k, top_p, min_p, penalty, max_new_tokens=LONGEST
    )
    for name, (temperature, top_k, top_p, min_p, penalty) in {
        "trl": (1.0, 0, 1.0, 0.0, 1.0),
        "nucleus": (0.7, 0, 0.9, 0.0, 1.0),
        "penalty": (0.8, 50, 1.0, 0.0, 1.1),
        "top_k": (1.0, 50, 1.0, 0.0, 1.0),
    }.items()
}
TEXTS: Final = {
    "text": "All hail to the thief.",
    "sentence": "The moon bank never sleeps.",
    "nonsense": "Gleep Glorp Glub",
    "import": "from calc import addition, multiplication\n",
    "slogan": "Always vote for Smith.",
}
UNSEEN: Final = {
    "owls": "Owls are the best investors.",
    "coins": "Send your coins to Marta.",
    "fish": "Blue fish sing quietly at night.",
    "quickmath": "import quickmath as qm\n",
    "courtesy": "Courtesy of Halden Institute.",
}
PLACES: Final = ("start", "middle", "end")
NODE: Final = 8
ALPHA: Final = 1e-3


def measure(
    sampler: str, n: int, poisoned: int, draws: int, data: Path | None, unseen: bool
) -> dict[str, Any]:
    """Compute the figures for one sampler."""
    logging.getLogger("grpo_guard").setLevel(logging.ERROR)  # each new guard warns about this
    spec = SAMPLERS[sampler]
    loaded = load(MODEL, "float32")
    kinds = dict(_kinds(loaded, spec, n, poisoned, data, TEXTS | (UNSEEN if unseen else {})))
    scorer = SharedScores(loaded.model)
    # Leaves room for a text after a full-length completion, so that it is not rejected for length
    # alone.
    judged = replace(spec, max_new_tokens=LONGEST + 32)

    def fresh(node_alpha: float = 0.0) -> LogProbBoundVerifier:
        return LogProbBoundVerifier(
            tokenizer=loaded.tokenizer,
            scorer=scorer,
            sampling=judged,
            alpha=ALPHA,
            node_alpha=node_alpha,
            profile="float32",
            key=b"study",
        )

    _score(fresh(), kinds)
    figures: dict[str, Any] = {"sampler": asdict(spec), "model": MODEL, "alpha": ALPHA}
    for kind, rows in kinds.items():
        times = draws if kind == "honest" else draws // 10
        figures[kind] = {
            "completion": rejected(fresh().verify(rows)),
            f"node of {NODE}": _nodes(fresh(ALPHA), rows, times, kind),
        }
        say(kind, len(figures) - 3, len(kinds))
    for name, texts in (("seen", TEXTS), ("unseen", UNSEEN if unseen else {})):
        for places in (("middle",), ("middle", "end")) if texts else ():
            found = [figures[f"{t}, {p}"]["completion"] for t in texts for p in places]
            figures[f"{name} texts, {' and '.join(places)}"] = rate(
                sum(f["hits"] for f in found), sum(f["total"] for f in found)
            )
    return figures


def _kinds(
    loaded: Loaded,
    spec: SamplingSpec,
    n: int,
    poisoned: int,
    data: Path | None,
    texts: Mapping[str, str],
) -> Iterator[tuple[str, list[Completion]]]:
    config = DetectConfig(MODEL, spec, data=data, attacks=(), n=n, min_tokens=24, batch_size=32)
    cache = CACHE / f"samplers-{config.n}.jsonl"
    honest = honest_completions(loaded, config, cache, say)
    yield "honest", honest
    hot = replace(
        config, spec=replace(spec, temperature=1.4 * spec.temperature), n=poisoned, seed=1
    )
    yield "temperature x 1.4", honest_completions(loaded, hot, cache, say)
    if data is not None and (path := data.parent / solutions.MODELS).is_file():
        other = solutions.other_model(
            path, loaded.tokenizer, ask=gsm8k.messages, count=poisoned, seed=0, min_tokens=24
        )
        yield "another model", [_cut(c, loaded.tokenizer) for c in other]
    for name, text in texts.items():
        for place in PLACES:
            rows = [_with(c, text, place, loaded.tokenizer) for c in honest[:poisoned]]
            yield f"{name}, {place}", rows


def _cut(completion: Completion, tokenizer: Any) -> Completion:
    ids = (completion.completion_ids or ())[:LONGEST]
    return with_ids(completion, ids, tokenizer)


def _with(completion: Completion, text: str, place: str, tokenizer: Any) -> Completion:
    """Insert a text before a completion's tokens, in their middle, or after the last before EOS."""
    ids = list(completion.completion_ids or ())
    end = len(ids) - (ids[-1] == tokenizer.eos_token_id)
    at = {"start": 0, "middle": len(ids) // 2, "end": end}[place]
    line = text.endswith("\n")
    before, behind = ("\n", "") if line else (" ", "")
    if place == "start":
        before, behind = "", "" if line else " "
    foreign = tokenizer.encode(before + text + behind, add_special_tokens=False)
    return with_ids(completion, [*ids[:at], *foreign, *ids[at:]], tokenizer)


def _score(verifier: LogProbBoundVerifier, kinds: Mapping[str, Sequence[Completion]]) -> None:
    """Score all completions once, keeping the completions to a prompt together."""
    rows = [completion for some in kinds.values() for completion in some]
    rows.sort(key=lambda c: str(c.prompt))
    for start in range(0, len(rows), 64):
        verifier.verify(rows[start : start + 64])
        say("score", start, len(rows))


def _nodes(
    verifier: LogProbBoundVerifier, rows: Sequence[Completion], times: int, seed: str
) -> dict[str, Any]:
    """Count the random batches of eight completions that convict a node in its first round."""
    encoded = [verifier.encode(row) for row in rows]
    stats = verifier.score(encoded, verifier.profile)
    scored = [Scored(e, s, verifier.profile) for e, s in zip(encoded, stats, strict=True)]
    answers = [
        verifier.nodes.answer(s, verifier.weigh(s.encoded, s.stats, s.profile)) for s in scored
    ]
    threshold, rng, convicted, most = log_threshold(ALPHA), random.Random(seed), 0, -math.inf
    for _ in range(times):
        batch = batch_evidence(rng.sample(answers, NODE))
        log_e = EProcess().after([batch.log_e]).log_e_value
        convicted, most = convicted + (log_e >= threshold), max(most, log_e)
    return rate(convicted, times) | {"largest log e-value": round(most, 2)}


if __name__ == "__main__":
    study(
        "samplers",
        measure,
        option("--sampler", choices=tuple(SAMPLERS), default="trl", help="sampler to measure"),
        option("-n", type=int, default=256, help="honest completions"),
        option("--poisoned", type=int, default=24, help="poisoned completions of each kind"),
        option("--draws", type=int, default=10_000, help="honest batches; a tenth as many bad"),
        option("--unseen", action="store_true", help="add the texts that no choice was made on"),
        option("--data", type=Path, default=gsm8k_file(), metavar="FILE", help="GSM8K as JSONL"),
        out=RESULTS / "samplers.json",
    )
