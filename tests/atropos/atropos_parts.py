"""Small test parts around the real Atropos: a word tokenizer, groups, a local server."""

import contextlib
import socket
import threading
import time
import urllib.request

import uvicorn
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS = ["<unk>", "<end>", "3+4?", "one", "two", "three", "Hail", "unseen", "tool", "go", "on"]
PROMPT = [2]


def tokenizer():
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", eos_token="<end>", pad_token="<end>"
    )


def saved_tokenizer(folder):
    tokenizer().save_pretrained(folder)
    return str(folder)


def row(text, prompt=PROMPT):
    """Return ids and masks of a prompt and a finished answer."""
    said = [WORDS.index(word) for word in text.split()] + [1]
    return prompt + said, [-100] * len(prompt) + said


def left_out(made, i):
    """Whether a row of a group trains nothing: one unmasked token with an advantage of 0."""
    masks = made["masks"][i]
    marked = made["overrides"][i] == {"set_advantage_to_zero": True}
    return marked and set(masks[:-1]) == {-100} and masks[-1] == made["tokens"][i][-1]


def group(*texts, scores, **more):
    rows = [row(text) for text in texts]
    made = {
        "tokens": [tokens for tokens, _ in rows],
        "masks": [masks for _, masks in rows],
        "scores": list(scores),
        "inference_logprobs": [[1.0] + [-0.5] * (len(t) - 1) for t, _ in rows],
    }
    return made | more


@contextlib.contextmanager
def served(app):
    """Serve an application on a free local port and yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


def post(url, body, **headers):
    """Return status and body."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()
