"""Tokenizers of single characters for hostile rows."""


class Characters:
    """A tokenizer of 128 characters; id 3 ends a text."""

    eos_token_id, pad_token_id, all_special_ids, added_tokens_decoder = 3, 0, (0, 3), {}
    response_template = None

    def __len__(self):
        return 128

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": self.encode(text)}

    def encode(self, text, add_special_tokens=True):
        return [min(ord(c), 127) for c in text]

    def decode(self, ids, skip_special_tokens=False, clean_up_tokenization_spaces=False):
        return "".join(chr(i) for i in ids if not (skip_special_tokens and i in (0, 3)))

    def apply_chat_template(self, prompt, **_):
        return {"input_ids": self.encode(prompt[-1]["content"])}


class Reasoning(Characters):
    response_template = "..."
