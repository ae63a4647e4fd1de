"""What the model tests share: loaded models, and a runner that plays the engine's part."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

from phloem.runtime.model.batch import ForwardBatch
from phloem.runtime.model.load import load_model
from phloem.runtime.model.loaded import LoadedModel
from phloem.runtime.model.tiny import tiny_model


class Pages:
    """Runs a decoder over sequences in pages that lie scattered in the pool."""

    def __init__(self, decoder, page_size: int = 4, pages: int = 512, seed: int = 0) -> None:
        self.decoder = decoder
        self.page_size = page_size
        self.kv = decoder.new_kv(pages, page_size)
        order = torch.Generator().manual_seed(seed)
        self._free: Iterator[int] = iter(torch.randperm(pages, generator=order).tolist())
        self._tables: dict[str, list[int]] = {}
        self._lengths: dict[str, int] = {}

    def forward(self, chunks: dict[str, list[int]]) -> dict[str, torch.Tensor]:
        """One pass over the next tokens of each named sequence: all their rows' logits."""
        tokens, positions, slots, starts, contexts, tables = [], [], [], [0], [], []
        for name, chunk in chunks.items():
            table = self._tables.setdefault(name, [])
            start = self._lengths.get(name, 0)
            end = self._lengths[name] = start + len(chunk)
            while len(table) * self.page_size < end:
                table.append(next(self._free))
            tokens += chunk
            positions += range(start, end)
            slots += [
                table[at // self.page_size] * self.page_size + at % self.page_size
                for at in range(start, end)
            ]
            starts.append(len(tokens))
            contexts.append(end)
            tables.append(table)
        width = max(len(table) for table in tables)
        batch = ForwardBatch(
            tokens=torch.tensor(tokens),
            positions=torch.tensor(positions),
            slots=torch.tensor(slots),
            query_starts=starts,
            context_lens=contexts,
            pages=torch.tensor([table + [0] * (width - len(table)) for table in tables]),
            logit_rows=torch.arange(len(tokens)),
        )
        logits = self.decoder.forward(batch, self.kv)
        rows = [end - start for start, end in pairwise(starts)]
        return dict(zip(chunks, logits.split(rows), strict=True))

    def logits(self, ids: list[int]) -> torch.Tensor:
        """All rows' logits of one fresh sequence."""
        return self.forward({f"fresh-{len(self._tables)}": ids})[f"fresh-{len(self._tables) - 1}"]

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """The `count` most likely tokens after `ids`."""
        name = f"greedy-{len(self._tables)}"
        row = self.forward({name: ids})[name][-1]
        out = [int(row.argmax())]
        while len(out) < count:
            out.append(int(self.forward({name: out[-1:]})[name][-1].argmax()))
        return out


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small products gain nothing from threads, and lose much when the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def pages():
    """The runner's class."""
    return Pages


@pytest.fixture(scope="session")
def tiny() -> LoadedModel:
    """The two-layer random model."""
    return tiny_model()


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """The real model in float32."""
    return load_model(dtype="float32")
