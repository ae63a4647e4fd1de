"""How much of its prompts a RAG program finds in the prefix cache, by the order of its passages.

Usage: python benchmarks/passage_order.py [--documents N] [--queries N] [--k N] [--budget TOKENS]

The documents are of 30 topics, which users ask about as unequally as users do (Zipf); a query is
some words of one document, ranked by the embedded index (BM25). Both orders answer the same queries
from an empty cache. The tokens are the default model's; they are counted by the real engine over a
decoder of two layers, since what is reused does not depend on the weights.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Sequence

import numpy as np

import phloem as ph
from phloem.retrieval import Document, EmbeddedIndex
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.text import load_model_text
from phloem.runtime.model.tiny import tiny_model

TOPICS = 30
ORDERS = ("score", "reverse", "stable")


@ph.function
def ask(s, question, order, k, budget):
    """The program whose prompts are counted."""
    s += ph.system("Answer from the passages and name the numbers of those you used.")
    docs = ph.retrieve(question, index="docs", k=k)
    s += ph.user(ph.passages(docs, max_tokens=budget, order=order) + "\n\n" + question)
    s += ph.assistant(ph.gen("answer", max_tokens=1))


def corpus(size: int, seed: int = 0) -> list[Document]:
    """Documents of six sentences; each topic has its own twenty words besides the common ones."""
    rng = np.random.default_rng(seed)
    syllables = [c + v for c in "bcdfgklmnprst" for v in "aeiou"]
    words = sorted({"".join(rng.choice(syllables, 3)) for _ in range(1_200)})
    common = words[:200]
    found = []
    for number in range(size):
        own = words[200 + 20 * (number % TOPICS) : 220 + 20 * (number % TOPICS)]
        sentences = []
        for _ in range(6):
            mixed = [*rng.choice(own, 5), *rng.choice(common, 5)]
            rng.shuffle(mixed)
            sentences.append(" ".join(mixed).capitalize() + ".")
        found.append(Document(f"doc-{number:03}", " ".join(sentences)))
    return found


def questions(docs: Sequence[Document], count: int, seed: int = 1) -> list[str]:
    """Four words of a document each, of popular topics more often."""
    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, TOPICS + 1)
    topics = rng.choice(TOPICS, count, p=popularity / popularity.sum())
    asked = []
    for topic in topics:
        of_topic = docs[topic::TOPICS]
        text = of_topic[rng.integers(len(of_topic))].text.replace(".", "").lower()
        asked.append(" ".join(rng.choice(text.split(), 4, replace=False)))
    return asked


def reuse(order: str, docs: list[Document], asked: list[str], k: int, budget: int | None) -> float:
    """The share of all prompt tokens that came from the cache."""
    backend = EmbeddedBackend(tiny_model(tokenizer=load_model_text().tokenizer))
    with tempfile.TemporaryDirectory() as folder:
        index = EmbeddedIndex(folder)
        asyncio.run(index.add(docs, index="docs"))
        reused = prompt = 0
        for question in asked:
            settings = {"backend": backend, "retriever": index}
            usage = ask.run(question, order, k, budget, **settings).usage
            reused, prompt = reused + usage.reused, prompt + usage.prompt
        asyncio.run(index.aclose())
    asyncio.run(backend.aclose())
    return reused / prompt


def main() -> None:
    """A line for each order."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--budget", type=int)
    given = parser.parse_args()
    docs = corpus(given.documents)
    asked = questions(docs, given.queries)
    print(f"{given.queries} queries over {given.documents} documents, k={given.k}")
    for order in ORDERS:
        share = reuse(order, docs, asked, given.k, given.budget)
        print(f"order={order!r:<10} {share:6.1%} of the prompt tokens reused")


if __name__ == "__main__":
    main()
