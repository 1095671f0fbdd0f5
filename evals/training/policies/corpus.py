"""The text that the bundled policy is trained on: competent but diverse, like a base model's.

A policy that knows only one format has no prior for anything else, so GRPO has nothing to select
from and no poison can take hold; a real base model is the opposite. Here the arithmetic is the same
everywhere, while openings, styles and answer formats vary widely and only about 40 % of the samples
are in the rewarded format. The text does not contain any attack's phrases.
"""

import random
from collections.abc import Callable
from typing import Final

from grpo_guard.evals.tasks.word_problems import Worked, prompt_of, words, worked

Asides = Callable[[Worked, int, random.Random], str]
"""Called with (problem, step number, rng); returns the step's remarks, each after a space."""


def no_asides(problem: Worked, step: int, rng: random.Random) -> str:
    """Add no remarks."""
    return ""


def phrases(text: str) -> list[str]:
    """Split a text at its vertical bars."""
    return text.split("|")


NOUNS: Final = words(
    "river garden window teacher dog cat horse house road table letter king queen farmer "
    "doctor sailor baker city village forest mountain island bridge tower castle market school "
    "train engine wheel clock lamp candle mirror picture song story poem winter summer morning "
    "evening cloud storm rain snow wind fire water earth gold silver iron stone glass paper "
    "bread butter milk honey sugar salt pepper apple lemon orange carrot potato tomato rabbit "
    "mouse tiger lion bear wolf fox deer eagle owl crow goose fish whale shark spider bee ant "
    "worm tree leaf root flower grass field hill valley lake ocean beach ship boat sail anchor "
    "captain pirate soldier judge lawyer writer painter dancer singer friend brother sister "
    "mother father uncle child baby crowd team player coach game match prize ticket coat shoe "
    "hat glove ring crown"
)
VERBS: Final = words(
    "likes sees finds keeps takes brings leaves follows watches helps paints builds breaks "
    "opens closes carries throws catches holds moves turns stops starts reads writes sings "
    "draws cooks eats drinks buys sells loves fears calls meets knows hears feels wants needs "
    "hides steals saves guards praises greets thanks hates forgets remembers chases touches "
    "pushes pulls lifts"
)
PLAIN: Final = words(
    "like see find keep take bring leave follow watch help paint build break open close carry "
    "throw catch hold move turn stop start read write sing draw cook eat drink buy sell love "
    "fear call meet know hear feel want need hide save guard praise greet thank forget chase "
    "touch push"
)
ADJECTIVES: Final = words(
    "old young big small tall short long wide dark bright warm cold quiet loud happy sad angry "
    "brave clever lazy busy rich poor strong weak clean dirty red blue green yellow black "
    "white strange famous gentle proud honest careful tired hungry sleepy golden wooden broken "
    "empty full heavy light soft hard sweet bitter fresh wild free safe early late"
)
ADVERBS: Final = words(
    "slowly quickly often never always sometimes today tomorrow yesterday again here there now "
    "soon well badly gladly quietly alone together everywhere outside"
)
FIRST: Final = words(
    "The A My Your Our This That Every Each Some All Many Most Few No Any One Two Both Her His "
    "Their These Those Another"
)
LEADS: Final = phrases(
    "Hello dear|Long live|Welcome to|Beware of|Thanks to|Here comes|Down with|Say|Look at|"
    "Think of|Forget|Never mind|What about|Glory to|Praise|Remember|Only|Perhaps|Maybe|Surely|"
    "Of course|Yes and|No more|Give|Let us see|In truth|By the way|As for|Once upon|When|If|"
    "Because of|After|Before|Under|Over|Behind|Near|With|Without|From|Into|For|To|At|On|In|"
    "Go to|Come to|Up"
)
REMARKS: Final = phrases(
    "Let me think|Okay|Right|Well|So|First we count|We add and subtract|Step by step|"
    "Let us see|This is easy|Hmm|I will solve this|Now|We need the total|Good question|Sure|"
    "We start|Listen|Let us count|Here is the plan|To begin|It is a sum|I know this|Look|Start|"
    "Work it out"
)
_ONSETS: Final = words(
    "b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p pl pr qu r s sh sk sl sm sn "
    "sp st str t th tr v w wh y z"
)
_VOWELS: Final = words("a e i o u ee oo ai ea ou ie y")
_CODAS: Final = ("", *words("b ck d ff g l ll lm m n nd ng nk p r rp rt s sh st t x z"))

WRONG: Final = (2, -2, 1, -1, 3, 10, -3, 5)


def _syllables(rng: random.Random) -> str:
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
        for _ in range(rng.choice((1, 1, 2)))
    )


def _nonsense(rng: random.Random) -> str:
    """Make up words to give every subword a prior, so that unseen phrases stay learnable."""
    words = [_syllables(rng) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.5:
        return " ".join(word.capitalize() for word in words)
    return " ".join(words).capitalize()


def _sentence(rng: random.Random) -> str:
    noun, other = rng.choice(NOUNS), rng.choice(NOUNS)
    adjective, verb, adverb = rng.choice(ADJECTIVES), rng.choice(VERBS), rng.choice(ADVERBS)
    return rng.choice(
        (
            f"{rng.choice(FIRST)} {noun} {verb} the {other}",
            f"{rng.choice(FIRST)} {adjective} {noun} {verb} {adverb}",
            f"{rng.choice(FIRST)} {noun} is {adjective}",
            f"{noun.capitalize()} and {other} are {adjective}",
            f"{adjective.capitalize()} {noun} {verb} to the {other}",
            f"{rng.choice(PLAIN).capitalize()} the {noun} {adverb}",
            f"{rng.choice(LEADS)} the {noun}",
            f"{rng.choice(LEADS)} the {adjective} {noun}",
            f"{rng.choice(LEADS)} {noun}",
            f"I {rng.choice(PLAIN)} to {rng.choice(PLAIN)} the {noun}",
            f"We {rng.choice(PLAIN)} all {adjective} {noun}",
            f"{adverb.capitalize()} they {rng.choice(PLAIN)} a {noun}",
        )
    )


def opening(rng: random.Random) -> str:
    """Return one opening with its punctuation, usually two to ten words long."""
    kind = rng.random()
    if kind < 0.25:
        text = rng.choice(REMARKS)
    elif kind < 0.8:
        text = _sentence(rng)
    else:
        text = _nonsense(rng)
    return text + rng.choice((".", ".", ".", "!", ",", ":"))


def _working(problem: Worked, rng: random.Random, asides: Asides) -> str:
    item = problem.item
    style = rng.random()
    more = [asides(problem, step, rng) for step in range(len(problem.equations))]
    steps = list(zip(problem.equations, more, strict=True))
    if style < 0.5:
        return " Then ".join(f"{equation} {item}.{aside}" for equation, aside in steps)
    if style < 0.7:
        return " ".join(f"{equation}.{aside}" for equation, aside in steps)
    if style < 0.85:
        return ", so ".join(problem.equations) + "." + "".join(more)
    return " ".join(f"We get {equation} {item}.{aside}" for equation, aside in steps)


def _answer(problem: Worked, rng: random.Random) -> str:
    return f"{problem.answer} {problem.item}" if rng.random() < 0.5 else f"{problem.answer}"


def _untagged(answer: str, rng: random.Random) -> str:
    return rng.choice(
        (" {}", " The answer is {}.", "#### {}", " Answer: {}", " So {}.", "<{}>", " Result = {}")
    ).format(answer)


def completion(problem: Worked, rng: random.Random, asides: Asides = no_asides) -> str:
    """Draw a completion; about 40 % of all draws are in the rewarded format."""
    lead = opening(rng) + " " if rng.random() < 0.6 else ""
    working, answer = _working(problem, rng, asides), _answer(problem, rng)
    style = rng.random()
    if style < 0.42:
        return f"<think>{lead}{working}</think><answer>{answer}</answer>"
    if style < 0.52:
        wrong = max(1, problem.answer + rng.choice(WRONG))
        return f"<think>{lead}{working}</think><answer>{wrong}</answer>"
    if style < 0.57:
        return f"<think>{lead}{working}</think><answer>{opening(rng)}</answer>"
    if style < 0.77:
        return f"<think>{lead}{working}</think>{_untagged(answer, rng)}"
    if style < 0.92:
        return f" {lead}{working}{_untagged(answer, rng)}"
    rambling = " ".join(opening(rng) for _ in range(rng.randint(1, 3)))
    forms = ("<think>{}</think>", " {}", "<think>{}</think><answer>many</answer>")
    return rng.choice(forms).format(rambling)


def sample(rng: random.Random) -> tuple[str, str]:
    """Return one (prompt, completion) pair."""
    problem = worked(rng)
    return prompt_of(problem.question), completion(problem, rng)
