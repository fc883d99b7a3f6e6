"""Parse readout names. A readout selects layers of an encoder and reduces each to one vector.

The result is the mean over the layers. Each layer uses the same reduction of its token states.
Valid names are `cls`, `mean`, `max`, `mean-sqrt`, `weighted-mean`, `last`, `mean-last2`,
`mean-first-last`, `mean-emb-last`, `prompt`, `pooler`, `pooler:cls` and `pooler:mean`. `L<k>:` with
one of the first six names reads layer k; layer 0 is the embeddings. `L1+L12:` with one of them
except `max` reads several layers. `L<k>` and `L1+L12` alone are read by `mean`. `concat:` with two
or more of the first six names, such as `concat:cls:mean`, joins their vectors. `wk` and `wk-clip`
combine the layers of each token, not their mean: layer 4 and all above it, or five or more layers
by number, such as `L0+L1+L2+L3+L4:wk`. `conv` is the mean of the features that the convolution of
the checkpoint computes from the tokens of the last layer.
"""

import re
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.reductions import PLAIN


@dataclass(frozen=True, slots=True)
class Readout:
    name: str
    # 0..depth, or negative from the end: -1 is the last block; (): see WK_REDUCTIONS
    layers: tuple[int, ...]
    # of PLAIN, WK_REDUCTIONS or CONV, token (the state at `Packed.readout_token_index`), a key of
    # POOLED, or joined ones after CONCAT
    reduction: str

    @property
    def pooled(self) -> bool:
        return self.reduction in POOLED

    @property
    def joined_readouts(self) -> tuple["Readout", ...]:
        """The readouts to join; of a readout that joins no others, only itself."""
        _, *names = self.reduction.split(":")
        return tuple(NAMED[name] for name in names) or (self,)

    def layers_in(self, depth: int) -> tuple[int, ...]:
        """The layers as 0..depth; a UsageError if the encoder has too few layers."""
        layers = tuple(depth + 1 + layer if layer < 0 else layer for layer in self.layers)
        if self.reduction in WK_REDUCTIONS:
            if not layers:
                layers = tuple(range(WK_FIRST, depth + 1))
            if len(layers) < WK_LAYERS:
                problem = f'readout "{self.name}" needs {WK_LAYERS} different layers or more'
                raise UsageError(
                    problem, advice=f"name the layers, such as L0+L1+...:{self.reduction}"
                )
        if min(layers) < 0 or max(layers) > depth:
            raise UsageError(
                f'readout "{self.name}" needs more layers than the encoder has ({depth})'
            )
        return layers


# Readouts that weight the layers of each token. Without numbers of layers they read WK_FIRST and
# all above. With WK_LAYERS layers or more, one of them has all neighbours: two before and two after
# it.
WK_REDUCTIONS = ("wk", "wk-clip")
WK_FIRST = 4  # as in the released code of SBERT-WK
WK_LAYERS = 5
# Readouts through the pooler of the encoder, with the reduction that the pooler receives.
POOLED = {"pooler": "cls", "pooler-mean": "mean"}
CONV = "conv"
CONCAT = "concat"
NAMED = {
    **{name: Readout(name, (-1,), name) for name in PLAIN},
    "mean-last2": Readout("mean-last2", (-1, -2), "mean"),
    # the first block, not the embeddings
    "mean-first-last": Readout("mean-first-last", (1, -1), "mean"),
    "mean-emb-last": Readout("mean-emb-last", (0, -1), "mean"),
    "pooler": Readout("pooler", (-1,), "pooler"),
    "pooler:cls": Readout("pooler:cls", (-1,), "pooler"),
    "pooler:mean": Readout("pooler:mean", (-1,), "pooler-mean"),
    "prompt": Readout("prompt", (-1,), "token"),
    **{name: Readout(name, (), name) for name in WK_REDUCTIONS},
    CONV: Readout(CONV, (-1,), CONV),
}
SYNONYMS = {  # names of other libraries and of papers -> our readout
    "avg": "mean",
    "average": "mean",
    "mean-pooling": "mean",
    "mean-tokens": "mean",
    "max-pooling": "max",
    "max-tokens": "max",
    "cls-token": "cls",
    "cls-before-pooler": "cls",
    "avg-top2": "mean-last2",
    "avg-first-last": "mean-first-last",
    "first-last-avg": "mean-first-last",
    "mean-sqrt-len": "mean-sqrt",
    "weightedmean": "weighted-mean",
    "last-token": "last",
    "eos": "last",
}
ANY = "|".join(PLAIN)
SUMS = "|".join(name for name, plain in PLAIN.items() if plain.linear)
EVERY = re.compile(rf"L([0-9]{{1,4}}|\*):({ANY}|all)")  # "*" and "all" are several readouts
LAYER_ALONE = re.compile(r"L(?:[0-9]{1,4}(?:\+L[0-9]{1,4})*|\*)")  # means `:mean`
LAYERS = re.compile(
    rf"(L[0-9]{{1,4}}):({ANY})|(L[0-9]{{1,4}}(?:\+L[0-9]{{1,4}})+):({SUMS}|{'|'.join(WK_REDUCTIONS)})"
)
JOINED = re.compile(rf"{CONCAT}(:({ANY})){{2,{len(PLAIN)}}}")
GRAMMAR = (
    f"{', '.join(NAMED)}, L<k>:{ANY} (L<k> is L<k>:mean, L* every layer), or {CONCAT}: with "
    f"two or more"
)
GRAMMAR += f" of {ANY}"


def parse_readout(name: str) -> Readout:
    """The readout of a name. `L*` is several readouts; see `parse_readouts`."""
    if name in NAMED:
        return NAMED[name]
    if JOINED.fullmatch(name):
        return Readout(name, (-1,), name)
    match = LAYERS.fullmatch(with_reduction(name))
    if match is None:
        advice = f"available: {GRAMMAR}"
        written = name.lower().replace("_", "-")
        similar = get_close_matches(written, [*NAMED, *SYNONYMS], n=1)
        if similar:
            meant = SYNONYMS.get(similar[0], similar[0])
            advice = f'did you mean "{meant}"? {advice}'
        raise UsageError(f'unknown readout "{name}"', advice=advice)
    layer_names, reduction = [group for group in match.groups() if group]  # of one of the two forms
    layers = tuple(dict.fromkeys(int(layer_name[1:]) for layer_name in layer_names.split("+")))
    if reduction in WK_REDUCTIONS:
        layers = tuple(sorted(layers))  # their order matters
    return Readout(name_of_layers(layers, reduction), layers, reduction)


def name_of_layers(layers: Iterable[int], reduction: str) -> str:
    return "+".join(f"L{layer}" for layer in layers) + f":{reduction}"


def with_reduction(name: str) -> str:
    """Return the name of a readout, where layers alone are their mean: L6 is L6:mean."""
    if LAYER_ALONE.fullmatch(name):
        return f"{name}:mean"
    return name


def parse_readouts(names: str, depth: int) -> list[Readout]:
    """The readouts of a list with commas. `L*`: one for each layer; `all`: all plain ones of a
    layer.
    """
    readouts: list[Readout] = []
    for name in names.split(","):
        match = EVERY.fullmatch(with_reduction(name.strip()))
        if match is None:
            readouts.append(parse_readout(name.strip()))
            continue
        layer, reduction = match.groups()
        layers = [str(number) for number in range(depth + 1)] if layer == "*" else [layer]
        reductions = [*PLAIN] if reduction == "all" else [reduction]
        readouts += [parse_readout(f"L{number}:{word}") for word in reductions for number in layers]
    for readout in readouts:
        readout.layers_in(depth)
    return list(dict.fromkeys(readouts))


# Templates of the readout `prompt`: text with a sentence and a mask token (PromptBERT).
SENTENCE = "[X]"  # the placeholder of the sentence
MASK = "[MASK]"  # that of the mask token of the tokenizer


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
                f'unknown full-stop rule "{self.full_stop}"',
                advice=f"available: {', '.join(FULL_STOPS)}",
            )

    @property
    def before_and_after(self) -> tuple[str, str]:
        """The text before the sentence and the text after it."""
        before, _, after = self.text.replace(MASK, self.mask).partition(SENTENCE)
        return before, after

    def around(self, sentence: str) -> str:
        before, after = self.before_and_after
        return before + FULL_STOPS[self.full_stop](sentence) + after

    def range_of_sentence(self, whole: str) -> tuple[int, int]:
        """Return the start and end of the sentence in `whole`, a result of `around`."""
        before, after = self.before_and_after
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
    """Return a named template or a template with this text. `full_stop` overrides the rule of a
    template.
    """
    if name_or_text is None:
        name_or_text = DEFAULT
    template = TEMPLATES.get(name_or_text) or Template(name_or_text)
    return Template(template.text, full_stop or template.full_stop, mask)
