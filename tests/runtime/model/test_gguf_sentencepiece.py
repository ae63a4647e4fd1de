"""Sentencepiece vocabularies of GGUF files, on a small one made here."""

import pytest

from phloem.errors import ModelError
from phloem.programs.protocol import Special, Text
from phloem.runtime.engine.transcript import Transcript
from phloem.runtime.model.gguf_tokenizer import tokenizer_json_from_gguf
from phloem.runtime.model.tokenizer import Tokenizer

WORDS = ["ab", "▁a", "abc", "▁abc", "bc", "▁", "a", "b", "c", "é"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIALS = ["<pad>", "<eos>", "<bos>", "<unk>"]
META = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": [*SPECIALS, "\n\n", *BYTES, *WORDS],
    "tokenizer.ggml.scores": [-1000.0] * 5 + [0.0] * 256 + [-float(i) for i in range(len(WORDS))],
    "tokenizer.ggml.token_type": [3] * 4 + [4] + [6] * 256 + [1] * len(WORDS),
    "tokenizer.ggml.unknown_token_id": 3,
    "tokenizer.ggml.add_space_prefix": False,
}


@pytest.fixture
def tokenizer():
    return Tokenizer(tokenizer_json_from_gguf(META))


def pieces(tokenizer, text):
    return [tokenizer.token_bytes(i).decode("latin-1") for i in tokenizer.encode(text)]


def test_what_was_learned_first_is_merged_first(tokenizer):
    """ "ab" ranks before "bc": "abc" is made of it; a space belongs to what follows."""
    assert pieces(tokenizer, "abc") == ["abc"]
    assert pieces(tokenizer, "bcab") == ["bc", "ab"]
    assert pieces(tokenizer, "a abc") == ["a", " abc"]


def test_characters_outside_of_the_vocabulary_are_bytes(tokenizer):
    """An unknown character becomes its bytes, and every text survives the way back."""
    assert pieces(tokenizer, "ü") == ["\xc3", "\xbc"]
    for text in ("abc ü 漢字 \n\n x", "  two  blanks", "é", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_control_tokens_spelling_is_text_and_runs_of_newlines_are_tokens(tokenizer):
    """ "<bos>" in a text is no token; what the vocabulary defines as a whole is one."""
    assert tokenizer.special_id("<bos>") not in tokenizer.encode("<bos>")
    assert tokenizer.encode("a\n\nb")[1] == 4


def test_a_vocabulary_that_puts_a_space_before_every_text_is_refused():
    """Texts of a session are tokenised piece by piece: a space before each would be wrong."""
    with pytest.raises(ModelError, match="space before every text") as error:
        tokenizer_json_from_gguf({**META, "tokenizer.ggml.add_space_prefix": True})
    assert "safetensors" in error.value.hint


def test_sessions_of_a_base_model_open_with_its_own_token(tokenizer):
    """The opening is there once: before text, alone, and not before one that was written."""
    for segments, expected in (
        ([Text("ab")], [2, *tokenizer.encode("ab")]),
        ([], [2]),
        ([Special("<bos>"), Text("ab")], [2, *tokenizer.encode("ab")]),
        ([Special("<eos>")], [2, 1]),
    ):
        transcript = Transcript(tokenizer, 2, 2)
        transcript.append(segments)
        assert transcript.prompt().tokens == expected
        twin = Transcript(tokenizer, 2, 2)
        twin.restore(transcript.copy().snapshot("f", "", ""))
        assert twin.prompt().tokens == expected
