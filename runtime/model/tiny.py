"""A tiny decoder with random weights and a byte-level tokenizer, both made in code.

What lives here: `tiny_model`, for tests of structure that need a real forward pass and a real
tokenizer but no download. It speaks ChatML and says nothing sensible. What does not: anything
that reads a file.
"""

from __future__ import annotations

import hashlib
import json
import math

import torch

from phloem.runtime.model.chat import chat_format
from phloem.runtime.model.config import DecoderConfig
from phloem.runtime.model.linear import Dense
from phloem.runtime.model.llama import LayerWeights, LlamaDecoder
from phloem.runtime.model.loaded import LoadedModel
from phloem.runtime.model.tokenizer import Tokenizer, byte_alphabet

__all__ = ["tiny_decoder", "tiny_model", "tiny_tokenizer"]

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Words that become tokens of their own, so that text has more than one tokenisation.
WORDS = (
    " the", " a", " is", " of", " to", " and", " in", "yes", "no", " yes", " no", " because",
    "user", "system", "assistant", "ing", " answer", "true", "false", "null", '":', '",', '{"',
    '"}',
)  # fmt: skip
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_model(
    seed: int = 0,
    layers: int = 2,
    vocab: int | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    max_positions: int = 4096,
) -> LoadedModel:
    """A loaded model with random weights, equal for equal arguments; float32, on the CPU.

    `vocab` is the width of the logits (default: the tokenizer's size, rounded up to 32).
    """
    tokenizer = tokenizer or tiny_tokenizer()
    vocab = vocab or -(-tokenizer.vocab_size // 32) * 32
    decoder = tiny_decoder(seed, layers, vocab, max_positions=max_positions)
    ends = [tokenizer.special_id(token) for token in ("<|endoftext|>", "<|im_end|>")]
    name = f"tiny-{layers}x{decoder.config.hidden_size}-{seed}"
    identity = f"{name}/{vocab}/{max_positions}/{tokenizer.to_json()}"
    return LoadedModel(
        name=name,
        fingerprint=hashlib.sha256(identity.encode()).hexdigest(),
        config=decoder.config,
        decoder=decoder,
        tokenizer=tokenizer,
        dtype="float32",
        eos_ids=frozenset(i for i in ends if i is not None),
        chat_format=chat_format(CHATML, name, tokenizer.specials),
    )


def tiny_decoder(
    seed: int = 0, layers: int = 2, vocab: int = 320, *, max_positions: int = 4096
) -> LlamaDecoder:
    """A Llama with hidden size 64, 4 query heads on 2 KV heads of 16, and an untied head."""
    config = DecoderConfig(
        family="llama",
        vocab_size=vocab,
        hidden_size=64,
        mlp_size=128,
        layers=layers,
        heads=4,
        kv_heads=2,
        head_dim=16,
        max_positions=max_positions,
        tied_head=False,
    )
    generator = torch.Generator().manual_seed(seed)

    def matrix(outputs: int, inputs: int) -> torch.Tensor:
        # Wide enough that attention is sharp and logits are far apart: greedy text depends on
        # every token before it, and near-ties are rare.
        values = torch.randn(outputs, inputs, generator=generator)
        return values.mul_(3 / math.sqrt(inputs))

    def layer() -> LayerWeights:
        hidden, mlp = config.hidden_size, config.mlp_size
        heads = (config.heads + 2 * config.kv_heads) * config.head_dim
        return LayerWeights(
            attention_norm=torch.ones(hidden),
            qkv=Dense(matrix(heads, hidden)),
            output=Dense(matrix(hidden, config.heads * config.head_dim)),
            mlp_norm=torch.ones(hidden),
            gate_up=Dense(matrix(2 * mlp, hidden)),
            down=Dense(matrix(hidden, mlp)),
        )

    embedding = torch.randn(vocab, config.hidden_size, generator=generator)
    stack = [layer() for _ in range(layers)]
    head = Dense(matrix(vocab, config.hidden_size))
    return LlamaDecoder(config, embedding, stack, torch.ones(config.hidden_size), head)


def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE: three special tokens, the 256 bytes, and a few dozen words."""
    letter = {byte: char for char, byte in byte_alphabet().items()}
    tokens = [*SPECIALS, *(letter[byte] for byte in range(256))]
    merges = []
    for word in WORDS:
        spelled = [letter[byte] for byte in word.encode()]
        for end in range(1, len(spelled)):
            left, right = "".join(spelled[:end]), spelled[end]
            if left + right not in tokens:
                tokens.append(left + right)
                merges.append([left, right])
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": token, **flags, "special": True}
            for i, token in enumerate(SPECIALS)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
        },
    }
    return Tokenizer(json.dumps(spec))
