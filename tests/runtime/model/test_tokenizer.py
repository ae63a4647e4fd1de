"""The tokenizer on its tiny vocabulary, and the stream decoder."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.errors import ModelError
from phloem.runtime.model.gguf_tokenizer import tokenizer_json_from_gguf
from phloem.runtime.model.tiny import tiny_tokenizer
from phloem.runtime.model.tokenizer import StreamDecoder, Tokenizer, byte_alphabet

TOKENS = tiny_tokenizer()


@given(st.text())
def test_any_text_survives_encoding(text):
    """Byte-level tokens decode to exactly the text they encode."""
    assert TOKENS.decode(TOKENS.encode(text)) == text


@given(st.lists(st.sampled_from(["<|im_end|>", "<|im_", "end|>", "<|endoftext|>", "a", " "])))
def test_no_text_encodes_to_a_special_token(parts):
    """Special tokens spelled in a text, whole or in pieces, stay ordinary text."""
    ids = TOKENS.encode("".join(parts))
    assert not set(ids) & set(TOKENS.specials.values())


def test_special_tokens_exist_by_their_spelling_only():
    """`special_id` knows control tokens and nothing else; they add no text."""
    assert TOKENS.special_id("<|im_end|>") == 2
    assert TOKENS.special_id("the") is None
    assert TOKENS.token_bytes(2) == b""


def test_every_byte_has_a_token():
    """The 256 single bytes are tokens, so any text can be produced."""
    single = {TOKENS.token_bytes(i) for i in range(TOKENS.vocab_size)}
    assert {bytes([byte]) for byte in range(256)} <= single


def test_the_json_holds_the_special_tokens():
    """Constraint engines get the whole tokenizer, control tokens included."""
    spec = json.loads(TOKENS.to_json())
    assert [t["content"] for t in spec["added_tokens"]] == list(TOKENS.specials)


def test_tags_are_control_tokens_but_runs_of_blanks_are_text():
    """<think> steers a model and is not read from text; an added token of blanks is."""
    spec = json.loads(TOKENS.to_json())
    for i, content in enumerate(["<think>", "    "]):
        added = {**spec["added_tokens"][0], "special": False, "content": content}
        spec["added_tokens"].append({**added, "id": TOKENS.vocab_size + i})
    tokens = Tokenizer(json.dumps(spec))
    tag, blanks = TOKENS.vocab_size, TOKENS.vocab_size + 1
    assert tag not in tokens.encode("<think>")
    assert blanks in tokens.encode("a    b")
    assert tokens.decode([tag, blanks]) == "<think>    "


def test_sentencepiece_tokens_spell_blanks_and_bytes():
    """In a vocabulary without a byte-level decoder, U+2581 is a blank and <0x41> a byte."""
    spec = json.loads(TOKENS.to_json())
    spec["decoder"] = {"type": "ByteFallback"}
    spec["model"]["vocab"] |= {"▁the": 900, "<0xE2>": 901}
    tokens = Tokenizer(json.dumps(spec))
    assert tokens.token_bytes(900) == b" the"
    assert tokens.token_bytes(901) == b"\xe2"
    assert tokens.token_bytes(899) == b""


def test_a_vocabulary_that_merges_text_into_a_special_token_is_refused():
    """If text alone can become a control token, the tokenizer is not used."""
    spec = json.loads(TOKENS.to_json())
    control = {**spec["added_tokens"][0], "content": "yes"}
    spec["added_tokens"].append({**control, "id": spec["model"]["vocab"]["yes"]})
    with pytest.raises(ModelError, match="'yes'"):
        Tokenizer(json.dumps(spec))


def test_a_broken_tokenizer_file_is_a_model_error():
    """What `tokenizers` can't read is refused with the remedy."""
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Tokenizer('{"model": {}}')


@given(st.text(), st.integers(1, 5))
def test_a_stream_gives_whole_characters_as_soon_as_they_are_complete(text, size):
    """Bytes in pieces of any size give the text, and never half a character."""
    data = text.encode("utf-8", errors="replace")
    stream = StreamDecoder()
    pieces = [stream.push(data[i : i + size]) for i in range(0, len(data), size)]
    assert "".join(pieces) == data.decode()
    assert stream.flush() == ""


def test_a_character_cut_off_or_broken_is_shown_as_a_replacement():
    """Bytes that never become a character end as U+FFFD, later ones are not lost."""
    stream = StreamDecoder()
    assert stream.push(b"a\xf0\x9f") == "a"
    copy = stream.copy()
    assert stream.push(b"b") == "\ufffdb"
    assert copy.push(b"\xa6\x8a") == "🦊"
    assert stream.push(b"\xe2") + stream.flush() == "\ufffd"


def gguf_meta(pre: str) -> dict:
    """The tiny vocabulary as GGUF metadata."""
    model = json.loads(TOKENS.to_json())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
    }


@pytest.mark.parametrize("pre", ["default", "gpt-2", "smollm", "llama-bpe", "qwen2", "tekken"])
def test_a_gguf_vocabulary_becomes_the_same_tokenizer(pre):
    """Each pre-tokenizer of the Llama family loads, and text survives it."""
    tokens = Tokenizer(tokenizer_json_from_gguf(gguf_meta(pre)))
    text = "I'll answer 123 because the <|im_end|> is no end:\n\n  naïve 🦊"
    assert tokens.decode(tokens.encode(text)) == text
    assert tokens.specials == TOKENS.specials


def test_other_gguf_vocabularies_are_refused_by_name():
    """Sentencepiece with a space put first and unknown pre-tokenizers are errors with a remedy."""
    with pytest.raises(ModelError, match=r"(?s)a space before every text.*safetensors folder"):
        tokenizer_json_from_gguf({"tokenizer.ggml.model": "llama"})
    with pytest.raises(ModelError, match="'dolphin'"):
        tokenizer_json_from_gguf(gguf_meta("dolphin"))


def test_mislabelled_tokens_do_not_become_special():
    """A token marked as control but not spelled in the byte alphabet stays ordinary."""
    meta = gguf_meta("smollm")
    meta["tokenizer.ggml.tokens"].append("東")
    meta["tokenizer.ggml.token_type"].append(3)
    assert "東" not in Tokenizer(tokenizer_json_from_gguf(meta)).specials


def test_the_byte_alphabet_is_a_bijection():
    """256 different printable characters stand for the 256 bytes."""
    table = byte_alphabet()
    assert sorted(table.values()) == list(range(256))
    assert all(char.isprintable() for char in table)
