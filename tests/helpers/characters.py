"""A tokenizer whose ids are code points, with three special tokens above them."""

PAD, END, CALL = 0x110000, 0x110001, 0x110002
NAMES = {PAD: "<pad>", END: "</s>", CALL: "<call>"}


class Characters:
    pad_token_id, eos_token_id, added_tokens_decoder = PAD, END, {}
    all_special_ids = tuple(NAMES)

    def __len__(self):
        return 0x110003

    def encode(self, text, add_special_tokens=True):
        return [ord(c) for c in text]

    def decode(self, ids, skip_special_tokens=False):
        kept = (i for i in ids if not (skip_special_tokens and i in NAMES))
        return "".join(NAMES.get(i) or chr(i) for i in kept if i < len(self))
