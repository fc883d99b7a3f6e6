"""The methods of `sentkit train`: those of the papers, general ones, and those of users.

`./mine.py:MyMethod` is a class in a file, `package.module:MyMethod` one of a package. Importing this module
does not import torch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from shlex import quote

from sentkit.errors import UsageError
from sentkit.flag_values import suggestion
from sentkit.papers import PAPERS
from sentkit.training.methods import recipes
from sentkit.training.settings import Listing
from sentkit.training.user_methods import LoadedMethod, errors_in, load_user_method


def general(summary: str, place: str, cite: str = "", note: str = "") -> Listing:
    settings = getattr(recipes, place.partition(":")[2])
    return Listing(summary, f"sentkit.training.methods.{place}", cite, note, settings)


GENERAL = {
    # sentences
    "mlm": general("predict masked tokens", "mlm:MaskedLanguageModel", "1810.04805"),
    "simcse": general(
        "contrast copies of a sentence; positive pairs",
        "simcse:SimCSE",
        "2104.08821",
        "With mlm_weight, the released code masks both copies of a sentence. This method masks one of them.",
    ),
    "esimcse": general(
        "SimCSE with repeated tokens and a queue",
        "simcse:ESimCSE",
        "2109.04380",
        "The momentum encoder starts as a copy of the base. In the released code it starts with random "
        "weights, because it is copied before the weights are loaded.",
    ),
    "promptbert": general(
        "contrast two templates without their bias",
        "promptbert:PromptBERT",
        "2201.04337",
        "The paper evaluates its supervised encoders through the head and without the bias of the template, "
        "which depends on the length of the text. No readout computes this. So --dev and the checkpoint use "
        "the state of [MASK], as the paper does for transfer tasks and without labels. The full stop of a "
        "template is also added in training; the released code adds it only in the evaluation.",
    ),
    "ct": general(
        "contrast the products of two encoders",
        "products:ContrastiveTension",
        note="As in the text of the paper, all pairs of a row have the same first sentence. The released "
        "code draws both sentences of a negative pair. The loss is that of the released code.",
    ),
    "is-bert": general(
        "match a sentence with its n-grams",
        "products:ISBERT",
        "2009.12061",
        "As in the released code, no activation follows the convolution. Reviews of the paper have a ReLU.",
    ),
    "tsdae": general(
        "restore a sentence from its vector",
        "mlm:TSDAE",
        "2104.06979",
        "The cross-attention has one key, so its weight is 1. The released code applies dropout to it; "
        "this method does not.",
    ),
    "rank-encoder": general(
        "SimCSE, and ranks by a frozen encoder",
        "simcse:RankEncoder",
        "2209.04333",
        "The paper ranks 100,000 sentences, as the preset does; the released script ranks 10,000. The script "
        "selects the step by the mean of STS-B and SICK-R dev; here --dev does.",
    ),
    # pairs and triplets
    "contrast": general("contrast pairs, with any number of negatives", "contrast:Contrast", "1807.03748"),
    "simcse-sup": general("contrast triplets", "simcse:SupervisedSimCSE", "2104.08821"),
    "clear": general("contrast two variants; predict masked tokens", "mlm:CLEAR", "2012.15466"),
    "sncse": general(
        "PromptBERT, with negations",
        "promptbert:SNCSE",
        "2201.05979",
        "The released script saves a checkpoint every 125 steps and evaluates none; here --dev chooses one.",
    ),
    # labels and scores
    "sbert": general(
        "learn labels or scores of pairs, or triplets",
        "pairs:SBERT",
        "1908.10084",
        "The library of the paper has AdamW without bias correction, as --set optimizer=adamw-bert.",
    ),
    "cosent": general(
        "rank the cosines of pairs by their scores",
        "pairs:CoSENT",
        note="Batch and learning rate are those of the released code. Its 5 epochs, constant rate, length 64 "
        "and [CLS] are not followed.",
    ),
    "angle": general(
        "rank pairs by angle; contrast positives",
        "pairs:AnglE",
        "2309.12871",
        "The weights are those of the README of the released code; the code of later releases has "
        "cosine_weight=0. The contrast is divided by all rows of both columns, as in the code. Batch, "
        "rate and length are those of the README; its 5 epochs, no warm-up and [CLS] are not followed.",
    ),
    "classify": general(
        "predict labels or scores of texts or pairs",
        "classify:Classify",
        "1810.04805",
        "The released code has AdamW without bias correction and epsilon 1e-6: --set optimizer=adamw-bert.",
    ),
    # teachers
    "distill": general("learn the vectors of a teacher", "distill:Distill"),
}
GROUPS = {  # of --list; the other methods are those of single papers
    "for products": ("contrast", "distill", "classify", "sbert", "cosent", "angle"),
    "without labels": ("simcse", "tsdae", "mlm", "esimcse", "promptbert", "ct", "is-bert", "rank-encoder"),
}
METHODS = {name: listing for paper in PAPERS.values() for name, listing in paper.methods.items()} | GENERAL


def load(name: str) -> LoadedMethod:
    """Return the class of a method and its file, if it is a user's. This imports torch."""
    if ":" in name:
        return load_user_method(name)
    if name not in METHODS:
        first = f"the method is the first word: sentkit train METHOD {quote(name)}; see sentkit train --list"
        advice = first if Path(name).is_file() else suggestion(name, METHODS)
        raise UsageError(f'unknown method "{name}"', advice=advice)
    return LoadedMethod(METHODS[name].load(), name)


@contextmanager
def open_method(name: str) -> Iterator[LoadedMethod]:
    """Load a method. In the context, the errors of a method of a user have the line of its file."""
    loaded = load(name)
    with errors_in(loaded.file, loaded.line):
        yield loaded


def names_of(method: str) -> tuple[list[str], list[str]]:
    """Return the settings and presets of a method, without torch."""
    listing = METHODS[method]
    return [each.name for each in fields(listing.settings)], list(listing.settings.presets)
