"""A model's texts without its weights, from the files a server's model is made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phloem.errors import ModelError
from phloem.runtime.model.load import load_model
from phloem.runtime.model.store import DEFAULT_MODEL
from phloem.runtime.model.text import load_model_text
from phloem.runtime.model.tiny import CHATML, tiny_model

MODEL = tiny_model()


def folder(path: Path, **settings: object) -> Path:
    (path / "tokenizer.json").write_text(MODEL.tokenizer.to_json(), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def test_a_folder_of_tokenizer_files_is_enough(tmp_path: Path) -> None:
    """Tokens, ends and chat format are the model's; no weights are there."""
    text = load_model_text(folder(tmp_path, eos_token="<|endoftext|>", chat_template=CHATML))
    assert text.tokenizer.encode("Hello the world") == MODEL.tokenizer.encode("Hello the world")
    assert text.eos_ids == MODEL.eos_ids
    assert text.chat_format is not None
    assert MODEL.chat_format is not None
    assert text.chat_format.prefix == MODEL.chat_format.prefix
    assert text.start == min(MODEL.eos_ids)


def test_generation_config_names_the_ends(tmp_path: Path) -> None:
    """Its eos_token_id, one or several, goes before the tokenizer's."""
    (folder(tmp_path) / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    assert load_model_text(tmp_path).eos_ids == {0, 2}
    assert load_model_text(tmp_path).chat_format is None


def test_a_model_without_an_end_is_refused(tmp_path: Path) -> None:
    """Without an end-of-sequence token there is an error with the remedy."""
    with pytest.raises(ModelError, match="end-of-sequence"):
        load_model_text(folder(tmp_path))
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        load_model_text(tmp_path.parent)


@pytest.mark.model
def test_a_gguf_file_gives_what_load_model_gives() -> None:
    """The default model's GGUF file gives the tokenizer, ends and format of the loaded model."""
    text, model = load_model_text(DEFAULT_MODEL), load_model(DEFAULT_MODEL)
    assert text.tokenizer.encode("Once upon a time") == model.tokenizer.encode("Once upon a time")
    assert text.eos_ids == model.eos_ids
    assert text.chat_format is not None
    assert text.chat_format.prefix == model.chat.prefix
