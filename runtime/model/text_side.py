"""`ModelText`: what is known of a model by whoever only speaks with it.

What lives here: the record. What does not: reading it from files (`text.py`), and weights
(`loaded.py`). Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from phloem.errors import Unsupported
from phloem.programs.protocol import ChatFormat, Special
from phloem.runtime.model.tokenizer import Tokenizer

__all__ = ["ModelText"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelText:
    """A tokenizer, the ids that end a generation, and the chat format or why there is none.

    `bos` is the token that every text begins with, for a model that needs one and has no chat
    format to put it there.
    """

    name: str
    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    chat_format: ChatFormat | None
    chat_problem: str = "the model has no chat template"
    bos: int | None = None

    @property
    def chat(self) -> ChatFormat:
        """The chat format. Raises `Unsupported` if the model has none that can be used."""
        if self.chat_format is None:
            raise Unsupported(
                f"{self.name}: {self.chat_problem}",
                hint="write the prompt as plain text, or use an instruct model",
            )
        return self.chat_format

    @property
    def start(self) -> int:
        """What a session with nothing in it starts from: what opens a conversation, else an end."""
        for segment in self.chat_format.begin if self.chat_format else ():
            if isinstance(segment, Special):
                found = self.tokenizer.special_id(segment.token)
                if found is not None:
                    return found
        return min(self.eos_ids) if self.bos is None else self.bos
