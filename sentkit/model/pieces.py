"""Text -> word pieces, as model2vec takes them: no special tokens, and none for what is unknown."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from sentkit.errors import DataError
from sentkit.formats.jsonfiles import read_object
from sentkit.model.lookup import UNKNOWN, without_unknown
from sentkit.model.tokens import Tokens, backend_of, rules_hash, told, unknown_ids

AT_ONCE = 512  # texts: what the library makes of them stays in the caches


class Pieces:
    """tokenizer.json alone decides; a cut comes before unknown tokens are left out."""

    unit, whole = "tokens", False

    def __init__(self, folder: Path, *, prompt: str) -> None:
        path = folder / "tokenizer.json"
        self.source = str(path)
        self._rules = read_object(path)
        self.backend = backend_of(self._rules, self.source)
        self.max_length: int | None = None
        self.prompt = prompt
        vocabulary = self.backend.get_vocab()
        if not vocabulary:
            raise DataError("a tokenizer without tokens", source=self.source)
        self.count = max(vocabulary.values()) + 1
        self.unknown = next(iter(unknown_ids(self._rules["model"], self.backend)), UNKNOWN)

    @cached_property
    def hash(self) -> str:
        return rules_hash(self._rules)

    def __call__(self, texts: Sequence[str]) -> list[Tokens]:
        whole = [self.prompt + text for text in texts] if self.prompt else list(texts)
        found: list[Tokens] = []
        for start in range(0, len(whole), AT_ONCE):
            with told(self.source):
                some = self.backend.encode_batch_fast(
                    whole[start : start + AT_ONCE], add_special_tokens=False
                )
            found += [without_unknown(each.ids, self.max_length, self.unknown) for each in some]
        return found
