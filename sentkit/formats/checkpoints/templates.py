"""Templates of the readout `prompt`: text with a sentence and a mask token (PromptBERT)."""

import string
from collections.abc import Callable
from dataclasses import dataclass

from sentkit.errors import UsageError

SENTENCE, MASK = "[X]", "[MASK]"  # placeholders; the mask token of the tokenizer replaces MASK


@dataclass(frozen=True, slots=True)
class Template:
    text: str
    full_stop: str = "none"  # a key of FULL_STOPS: final punctuation to add if missing
    mask: str = MASK

    def __post_init__(self) -> None:
        if self.text.count(SENTENCE) != 1 or self.text.count(MASK) != 1:
            raise UsageError(
                f'template "{self.text}" needs {SENTENCE} once and {MASK} once',
                advice=f"named templates: {', '.join(TEMPLATES)}",
            )
        if self.full_stop not in FULL_STOPS:
            raise UsageError(
                f'unknown full-stop rule "{self.full_stop}"', advice=f"available: {', '.join(FULL_STOPS)}"
            )

    @property
    def parts(self) -> tuple[str, str]:
        """The text before the sentence and the text after it."""
        before, _, after = self.text.replace(MASK, self.mask).partition(SENTENCE)
        return before, after

    def around(self, sentence: str) -> str:
        before, after = self.parts
        return before + FULL_STOPS[self.full_stop](sentence) + after

    def place(self, whole: str) -> tuple[int, int]:
        """Return the start and end of the sentence in `whole`, a result of `around`."""
        before, after = self.parts
        return len(before), len(whole) - len(after)


# Rules for final punctuation. PromptBERT checks for four characters, SNCSE for all punctuation.
FULL_STOPS: dict[str, Callable[[str], str]] = {
    "none": lambda sentence: sentence,
    "promptbert": lambda sentence: sentence + "." * (not sentence.endswith((".", "?", '"', "'"))),
    "sncse": lambda sentence: sentence + " ." * (not sentence.endswith(tuple(string.punctuation))),
}

TEMPLATES = {
    "defsent-plus": Template('This sentence : "[X]" means [MASK] . '),  # from the released code
    "defsent-plus-paper": Template("This sentence: '[X]' means [MASK]."),
    "promptbert": Template('This sentence : "[X]" means [MASK] .', "promptbert"),
    "promptbert-1": Template('This sentence of "[X]" means [MASK].', "promptbert"),
    "promptroberta": Template("This sentence : ' [X] ' means[MASK].", "promptbert"),
    "promptroberta-1": Template("The sentence : ' [X] ' means[MASK].", "promptbert"),
    "sncse": Template('This sentence : " [X] " means [MASK] .', "sncse"),
    "sncse-1": Template('This sentence of " [X] " means [MASK] .', "sncse"),
}
DEFAULT = "defsent-plus"


def find_template(name_or_text: str | None, full_stop: str | None, mask: str) -> Template:
    """Return a named template or a template with this text. `full_stop` overrides the rule of a template."""
    name_or_text = DEFAULT if name_or_text is None else name_or_text
    template = TEMPLATES.get(name_or_text) or Template(name_or_text)
    return Template(template.text, full_stop or template.full_stop, mask)
