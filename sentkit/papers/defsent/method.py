"""DefSent (arXiv 2105.04339): predicts a word from its definition with the language model head."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch.nn import functional as F

from sentkit.formats.counted import counted
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import ENTRY, filled_string
from sentkit.model.checkpoint.heads import LanguageHead
from sentkit.model.text.tokenizer import single_tokens
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.device import to_device
from sentkit.model.transformer.readouts import at_least_float32
from sentkit.papers.defsent import paper
from sentkit.training.base import Base
from sentkit.training.data.corpus import Batch
from sentkit.training.data.examples import Reads
from sentkit.training.method import Needs, Outputs, PackedMethod, Term, embedding_modules, mean_of
from sentkit.training.methods.mlm import head_of_base

TRAIN_ONE = "sentkit train mlm --set head=fresh trains one"


@dataclass(slots=True)
class Words:
    """The field "entry", a word that is one token. Its number is the token id. Other rows are
    omitted.
    """

    number_of: Callable[[str], int | None]
    is_held_out: Callable[[str], bool]
    unknown_rows: int = 0  # so far
    held_out_rows: int = 0

    @property
    def why(self) -> str:
        unknown = f"the entry of {counted(self.unknown_rows, 'row')} is not a single token"
        return f"{unknown}, the entry of {counted(self.held_out_rows, 'row')} is held out"

    def __call__(self, row: Row, name: str) -> float | None:
        word = filled_string(row, name)
        number = self.number_of(word)
        if number is None:
            self.unknown_rows += 1
            return None
        if self.is_held_out(word):
            self.held_out_rows += 1
            return None
        return float(number)


class DefSent(PackedMethod):
    Settings: ClassVar = paper.Settings
    needs: ClassVar = Needs(
        packed="a language model head", head=True, row_wise=True, constant=("head.",)
    )

    def __init__(self, body: Bert, settings: paper.Settings, head: LanguageHead) -> None:
        super().__init__(body, settings)
        self.head = head.requires_grad_(False)
        for module in embedding_modules(body, projection=False):
            module.requires_grad_(False)

    @classmethod
    def build(cls, base: Base, settings: paper.Settings) -> "DefSent":
        return cls(cls.bert(base, settings), settings, head_of_base(base, TRAIN_ONE))

    @classmethod
    def check(cls, base: Base, settings: paper.Settings) -> None:
        head_of_base(base, TRAIN_ONE)

    @classmethod
    def reads(cls, base: Base, settings: paper.Settings) -> Reads:
        words = Words(number_of(base), lambda word: share_of(word) >= settings.part)
        return Reads((ENTRY,), "entry", words)

    def encode(self, batch: Batch) -> Outputs:
        vectors = self.vectors(self.pack(batch.texts[0]))
        logits = self.head(vectors, self.body.words.weight)  # (b, v)
        assert batch.targets is not None, "each definition has its word"
        words = to_device(batch.targets, self.device).long()
        return {"nll": F.cross_entropy(at_least_float32(logits), words, reduction="none")}

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        return {"word": mean_of(outputs["nll"])}


def number_of(base: Base) -> Callable[[str], int | None]:
    """Return a function from a word to its token id, or None if the word is not one token."""
    rows = base.packed.vocabulary  # some tokenizers have more tokens
    number_of_word: dict[str, int | None] = {}

    def find(word: str) -> int | None:
        if word not in number_of_word:
            [number] = single_tokens(base.transformer_tokenizer, [word])
            if number is not None and number >= rows:
                number = None
            number_of_word[word] = number
        return number_of_word[word]

    return find


def share_of(word: str) -> float:
    """Hash a word to a number from 0 to 1. It does not depend on the machine or the dictionary.

    Case is ignored, because `Cat` and `cat` are the same token in many models.
    """
    folded = word.strip().casefold().encode()
    digest = hashlib.blake2b(folded, digest_size=6).digest()
    return int.from_bytes(digest) / (1 << 48)
