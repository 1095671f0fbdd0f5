"""`ToxicityVerifier`: rejects text that a sequence classifier of your choice flags."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Unpack

from grpo_guard.content.extras.rule import LibraryRule, imported, named, without_surrogates
from grpo_guard.content.rules import RuleOptions
from grpo_guard.content.severity import REJECT, Kind
from grpo_guard.core.completion import Completion
from grpo_guard.core.model_paths import missing, warn_unpinned
from grpo_guard.core.verdict import Finding

# Number of tokens shared by neighbouring pieces of a text.
_OVERLAP: Final = 32


class ToxicityVerifier(LibraryRule):
    """Rejects completions to which a sequence classifier assigns one of the given labels.

    You choose the classifier, loaded with transformers, and its labels: toxicity, or anything else
    a classifier was trained for. The whole text is read, in pieces that fit the model's window. No
    part of an author's text can become a special token. Which honest answers are rejected depends
    on the model: measure it (docs/extras.md).

    Args:
        model: Folder or hub id of the classifier, such as ``org/classifier``, with weights in
            safetensors.
        labels: The labels that lead to a rejection, spelled as in the model's ``id2label``, such as
            ``[toxic]``.
        threshold: Minimum probability, in (0, 1], of a label for a rejection. Each label has an
            independent probability if the model's ``problem_type`` is
            ``multi_label_classification`` or it has a single label; otherwise the probabilities of
            all labels sum to 1.
        device: The torch device to run the model on.
        batch_size: Number of pieces per forward pass.
        revision: Revision of a hub id; use a commit hash, or the id's owner can change the weights.
        local_files_only: Whether to load only local files and never contact the hub.
        max_characters: Maximum number of characters in a completion; longer ones are rejected.
        **rules: Options passed to `RuleVerifier`.

    Raises:
        ImportError: transformers is not installed; the message names the install command.
        ValueError: an argument is out of range; or, on loading, the model lacks a label.
    """

    name = "toxicity"
    needs = "a sequence classifier that transformers loads (grpo-guard[torch])"
    package = "transformers"
    KINDS: ClassVar[Mapping[str, Kind]] = {"toxic": REJECT}

    def __init__(
        self,
        model: str | Path,
        *,
        labels: Collection[str],
        threshold: float = 0.9,
        device: str = "cpu",
        batch_size: int = 16,
        revision: str = "",
        local_files_only: bool = False,
        max_characters: int = 100_000,
        **rules: Unpack[RuleOptions],
    ) -> None:
        super().__init__(max_characters=max_characters, **rules)
        if isinstance(labels, str) or not labels:
            raise ValueError(f"ToxicityVerifier.labels: expected a list of labels, got {labels!r}")
        if batch_size < 1 or not 0 < threshold <= 1:
            raise ValueError(
                "ToxicityVerifier: expected batch_size >= 1 and threshold in (0, 1], got "
                f"{batch_size!r} and {threshold!r}"
            )
        self.model, self.labels = str(model), tuple(labels)
        self.threshold, self.device, self.batch_size = threshold, device, batch_size
        self.revision, self.local_files_only = revision, local_files_only

    def load(self) -> "_Classifier":
        """Return the classifier: weights and tokenizer."""
        if (problem := missing(self.model)) is not None:
            raise ValueError(f"ToxicityVerifier.model: {problem}")
        if not self.local_files_only:
            warn_unpinned(self.model, self.revision or None)
        return _Classifier(self)

    def find_each(
        self, loaded: Any, completions: Sequence[Completion]
    ) -> Iterable[Iterable[Finding]]:
        """Return each completion's findings, strongest first; texts share forward passes."""
        found: list[list[Finding]] = loaded.classify(
            [without_surrogates(c.text) for c in completions]
        )
        return found

    def find(self, loaded: Any, completion: Completion, text: str) -> Iterator[Finding]:
        """Yield a finding for each piece of the text and each label, strongest first."""
        yield from loaded.classify([text])[0]


class _Classifier:
    """The loaded weights and tokenizer of a sequence classifier."""

    def __init__(self, options: ToxicityVerifier) -> None:
        transformers = imported("transformers")
        where = {
            "revision": options.revision or None,
            "local_files_only": options.local_files_only,
            "trust_remote_code": False,
        }
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(options.model, **where)
        if not getattr(self.tokenizer, "is_fast", False):
            raise ValueError(f"ToxicityVerifier.model: {options.model}: expected a fast tokenizer")
        kind = transformers.AutoModelForSequenceClassification
        # Pickled weights execute code.
        model = kind.from_pretrained(options.model, use_safetensors=True, **where)
        self.model = model.to(options.device).eval()
        known = [str(label) for _, label in sorted(model.config.id2label.items())]
        labels = named("ToxicityVerifier.labels", known, options.labels)
        self.labels = {known.index(label): label for label in labels}
        multi = model.config.problem_type == "multi_label_classification"
        self.each = multi or len(known) == 1
        self.threshold, self.batch_size = options.threshold, options.batch_size
        window = getattr(model.config, "max_position_embeddings", None) or 512
        self.window = min(window, self.tokenizer.model_max_length, 512)

    def classify(self, texts: Sequence[str]) -> list[list[Finding]]:
        """Return the findings of each text, strongest first."""
        pieces = [piece for i, text in enumerate(texts) for piece in self._pieces(i, text)]
        found: list[list[tuple[float, Finding]]] = [[] for _ in texts]
        # Sorted by length, so that a single long text does not pad a whole batch to its own length.
        pieces.sort(key=lambda piece: len(piece[2]))
        for at in range(0, len(pieces), self.batch_size):
            some = pieces[at : at + self.batch_size]
            rows = self._probabilities([ids for *_, ids in some])
            for (i, span, _), row in zip(some, rows, strict=True):
                for place, label in self.labels.items():
                    if row[place] >= self.threshold:
                        message = f"is classified as {label} with probability {row[place]:.2f}"
                        found[i].append((row[place], Finding("toxic", message, char_span=span)))
        return [
            [one for _, one in sorted(own, key=lambda pair: (-pair[0], pair[1].char_span))]
            for own in found
        ]

    def _pieces(self, i: int, text: str) -> Iterator[tuple[int, tuple[int, int], list[int]]]:
        """Yield (index, span in the text, token ids) for pieces that fit the model's window."""
        encoded = self.tokenizer(
            text,
            truncation=True,
            max_length=self.window,
            stride=min(_OVERLAP, self.window // 4),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            split_special_tokens=True,
        )
        for ids, places in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            own = [(start, end) for start, end in places if end > start]
            if own:
                yield i, (own[0][0], own[-1][1]), list(ids)

    def _probabilities(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the probabilities of all labels, with shape [B, labels].

        Raises:
            ValueError: a score is NaN, which no text can cause.
        """
        torch = imported("torch")
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), self.tokenizer.pad_token_id or 0)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = 1
        with torch.inference_mode():
            device = self.model.device
            logits = self.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
            logits = logits.float().cpu()
        if bool(logits.isnan().any()):
            raise ValueError("the classifier's scores are not numbers")
        chances = torch.sigmoid(logits) if self.each else torch.softmax(logits, dim=-1)
        return [[float(value) for value in row] for row in chances]
