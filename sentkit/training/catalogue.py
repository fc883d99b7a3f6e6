"""The methods of `sentkit train`. Importing this module does not import torch."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from sentkit.errors import UsageError
from sentkit.flag_values import suggestion

if TYPE_CHECKING:
    from sentkit.training.method import Method


@dataclass(frozen=True, slots=True)
class Listing:
    summary: str
    module: str
    name: str
    cite: str = ""
    note: str = ""  # a difference from the paper, for the manual

    def load(self) -> "type[Method]":
        kind: type[Method] = getattr(import_module(f"sentkit.training.methods.{self.module}"), self.name)
        return kind


METHODS = {
    # sentences
    "mlm": Listing("predict masked tokens", "mlm", "MaskedLanguageModel", "1810.04805"),
    "simcse": Listing("contrast copies of a sentence; positive pairs", "simcse", "SimCSE", "2104.08821"),
    "esimcse": Listing("SimCSE with repeated tokens and a queue", "esimcse", "ESimCSE", "2109.04380"),
    "sg-bert": Listing("contrast [CLS] with layers of a frozen copy", "sg_bert", "SelfGuided", "2106.07345"),
    "consert": Listing("contrast two views; classify pairs", "consert", "ConSERT", "2105.11741"),
    "promptbert": Listing(
        "contrast two templates without their bias",
        "promptbert",
        "PromptBERT",
        "2201.04337",
        "The paper evaluates its supervised encoders through the head and without the bias of the template, "
        "which depends on the length of the text. No readout computes this. So --dev and the checkpoint use "
        "the state of [MASK], as the paper does for transfer tasks and without labels.",
    ),
    "ct": Listing("contrast the products of two encoders", "ct", "ContrastiveTension"),
    "is-bert": Listing("match a sentence with its n-grams", "is_bert", "ISBERT", "2009.12061"),
    "tsdae": Listing("restore a sentence from its vector", "tsdae", "TSDAE", "2104.06979"),
    "rank-encoder": Listing(
        "SimCSE, and ranks by a frozen encoder", "rank_encoder", "RankEncoder", "2209.04333"
    ),
    # pairs and triplets
    "contrast": Listing("contrast pairs, with any number of negatives", "contrast", "Contrast", "1807.03748"),
    "simcse-sup": Listing("contrast triplets", "simcse_sup", "SupervisedSimCSE", "2104.08821"),
    "clear": Listing("contrast two variants; predict masked tokens", "clear", "CLEAR", "2012.15466"),
    "sncse": Listing("PromptBERT, with negations", "sncse", "SNCSE", "2201.05979"),
    # labels and scores
    "pairsupcon": Listing("classify pairs and contrast partners", "pairsupcon", "PairSupCon", "2109.05424"),
    "sbert": Listing("learn labels or scores of pairs, or triplets", "sbert", "SBERT", "1908.10084"),
    "cosent": Listing("rank the cosines of pairs by their scores", "cosent", "CoSENT"),
    "angle": Listing("rank pairs by angle; contrast positives", "angle", "AnglE", "2309.12871"),
    "classify": Listing("predict labels or scores of texts or pairs", "classify", "Classify", "1810.04805"),
    # dictionaries and teachers
    "defsent": Listing("predict the word from its definition", "defsent", "DefSent", "2105.04339"),
    "defsent-plus": Listing(
        "predict the entry's vector from its definition", "defsent_plus", "DefSentPlus", "2405.16153"
    ),
    "distill": Listing("learn the vectors of a teacher", "distill", "Distill"),
}


def find(name: str) -> "type[Method]":
    """Return the class of a method. This imports torch."""
    if name not in METHODS:
        raise UsageError(f'unknown method "{name}"', advice=suggestion(name, METHODS))
    return METHODS[name].load()
