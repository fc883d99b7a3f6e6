"""The systems of the four papers: how each is trained, and which rows and figures it belongs to.

The name of a system is that of its rows in the published tables. A system has all published rows of
the base with this name, with the readout of its checkpoint, or for the base and the tables of
`tables_with_readouts` that of the row. A row is the mean of all seeds. In a paper with `best_seed`,
a published row without a deviation is of the seed that is best on the dev pairs, and the mean is
another row.

A word in braces is a value of the recipe of the base (`recipes`), or a file of rows: one that
`rows` of the paper prepares, or one of the data, such as {nli/train}.
"""

from dataclasses import dataclass, field
from itertools import product


@dataclass(frozen=True)
class Entries:
    """The entries of DefSent+: the encoder that makes them (its best seed), and its readout."""

    maker: str
    readout: str = "{entry}"
    transform: str = ""  # a name in TRANSFORMS


ICA = ("--kind", "ica", "--keep-width", "--keep-signs", "--seed", "42")  # as the released code
TRANSFORMS = {  # of entries -> flags of `sentkit whiten fit`
    "ica": ICA,
    "ica-200": (*ICA, "--iterations", "200"),
    "ica-10000": (*ICA, "--iterations", "10000"),
    "centered": ("--kind", "center"),
}


@dataclass(frozen=True)
class System:
    name: str
    train: str = ""  # words after `sentkit train`
    start: str = "base"  # the system whose checkpoint is the base
    also: tuple[str, ...] = ()  # more names in the published tables
    # Only the rows of these tables; those that tables.py makes have no other rows.
    tables: tuple[str, ...] = ()
    added: str = ""  # the table that gets a row which the paper does not have
    figures: dict[str, str] = field(default_factory=dict)  # figure -> name of the value there
    entries: Entries | None = None
    flow: str = ""  # not trained: the rows to which a flow is fitted
    script: str = ""  # not trained: a script of examples/ with its arguments, which prints a table
    checkpoint: str = ""  # not trained: this one. Without all of these, --given has to name it
    trial: bool = True  # a part of --quick


@dataclass(frozen=True)
class Impossible:
    """A row, a figure or another value that no run makes."""

    reason: str
    tables: tuple[str, ...] = ()  # that lack it, if it is not a row


DRAWING = Impossible("a drawing of the method")
USE = Impossible("Universal Sentence Encoder, a TensorFlow network that sentkit does not run")
INFERSENT = Impossible("InferSent, an LSTM that only its own code reads")
SEMEVAL = Impossible("a submission to SemEval, which was never published as a model")


@dataclass(frozen=True)
class Paper:
    seeds: str
    recipes: dict[str, dict[str, str]]  # base -> values
    rows: dict[str, tuple]  # name -> how rows are made: a function of rows.py and its arguments
    systems: tuple[System, ...]
    figures: dict[str, str]  # function of figures.py -> number of the figure
    # Table that `report` does not make -> function of tables.py.
    tables_made_here: dict[str, str]
    impossible: dict[str, Impossible]  # by its name, which is that of the row or figure
    # Table -> more flags of `sentkit report`.
    flags: dict[str, tuple[str, ...]] = field(default_factory=dict)
    best_seed: bool = False  # a run starts from the seed that is best on the dev pairs
    max_length: int | None = None  # tokens of a text in the evaluation, where the paper has a limit
    tables_with_readouts: tuple[str, ...] = ()  # readouts that the checkpoints do not declare


SG = "sg-bert {stsb} --set readout=cls"
NLI_TEXTS = SG.replace("stsb", "nli-texts")
BT = "sg-bert {paraphrases/stsb} --set readout=cls --preset"
GLUE = (
    "classify {glue/TASK.train} --dev {glue/TASK.dev} --test {glue/TASK.test} --preset sg-bert-glue"
)

SG_BERT = Paper(
    seeds="1,2,3,4,1234,2345,3456,7890",
    recipes={
        f"{family}-{size}": {}
        for family in ("bert", "sbert", "roberta")
        for size in ("base", "large")
    }
    | {"mbert": {}},
    rows={
        "stsb": ("texts", "sts/stsb.train", "sts/stsb.dev", "sts/stsb.test"),
        "nli-texts": ("texts_like", "stsb", "nli/train"),  # as many; the paper states no number
    },
    systems=(
        System("glove"),
        System("cosine-baseline", checkpoint="words:binary"),
        System(
            "sg-opt-senteval", f"{NLI_TEXTS} --preset senteval", also=("sg-opt",), tables=("4",)
        ),
        System(
            "efficiency",
            script="efficiency.py {model} {stsb} {sts/stsb.train} --readout mean --readout {wk}"
            " --transform flow --train sg-bert --batch 16",
            tables=("6",),
        ),
        *(
            System(
                f"{start}-{task}",
                GLUE.replace("TASK", task) + "-cola" * (task == "cola"),
                # Appendix A.4 names no other start than that of table 1.
                start={"no-tuning": "base"}.get(start, start),
                tables=("10",),
            )
            for task, start in product(
                ("qnli", "sst2", "cola", "mrpc", "rte"), ("no-tuning", "sg-opt")
            )
        ),
        System("no-tuning", checkpoint="base"),
        System("flow", flow="stsb", figures={"domains": "flow,STS-B"}),
        System("flow-nli", flow="nli-texts", figures={"domains": "flow,NLI"}),
        System("bt", f"{BT} bt"),
        System("sg", f"{SG} --set objective=base"),
        System(
            "sg-opt", SG, also=("sg-opt-tau0.01-lambda0.1",), figures={"domains": "SG-OPT,STS-B"}
        ),
        System("sg-opt-nli", NLI_TEXTS, figures={"domains": "SG-OPT,NLI"}),
        System("bt+sg-opt", f"{BT} bt-sg-opt"),
        System("sg-opt-loss-opt2", f"{SG} --set objective=opt2"),
        System("sg-opt-loss-opt1", f"{SG} --set objective=opt1"),
        System("sg-opt-tau0.1", f"{SG} --set temperature=0.1"),
        System("sg-opt-tau0.001", f"{SG} --set temperature=0.001"),
        System("sg-opt-lambda0", f"{SG} --set drift_weight=0"),
        System("sg-opt-lambda1", f"{SG} --set drift_weight=1"),
        System("sg-opt-no-head", f"{SG} --set head=none"),
    ),
    figures={"layers": "1", "domains": "4", "space": "5, 6"},
    tables_made_here={
        "figure 1": "extremes",
        "figure 4": "losses",
        "6": "efficiency",
        "8": "settings",
        "9": "settings",
        "10": "glue",
    },
    impossible={
        "use": USE,
        "umcc-dlsi-run2": SEMEVAL,
        "ecnu": SEMEVAL,
        "figure 2": DRAWING,
        "figure 3": DRAWING,
        "marks of borrowed scores": Impossible(
            "no source of sentkit says which scores are from other papers", tables=("1",)
        ),
    },
    flags={
        **dict.fromkeys(("1", "5", "7", "11"), ("--baseline", "sg-opt")),
        "4": ("--head", "senteval:50:10", "--seed", "{seeds}"),
    },
)

VIEWS = ("none", "shuffle", "token-cutoff", "feature-cutoff", "dropout")
CT = "ct {sts}"
COUNTS = (1, 10, 100, 1000, 10000)  # of texts
OF_FEW_TEXTS = (  # setting, preset and start
    ("unsupervised", "unsup", "base"),
    ("supervised", "sup-unsup", "consert-sup"),
)
CONSERT_STS = "consert {sts} --preset unsup-{size}"

CONSERT = Paper(
    seeds="1",
    recipes={
        f"{family}-{size}": {"size": size}
        for family in ("bert", "roberta")
        for size in ("base", "large")
    },
    rows={
        # Also the pairs of 2015 and 2016 without a score.
        "sts": ("texts_with", "sts/sts1[56].train", "sts/sts1[2-6]", "sts/stsb.*", "sts/sickr.*"),
        "nli-texts": ("texts", "nli/train"),
        "corpus": ("texts", "corpora/*"),  # the paper counts words of Wikipedia
        "deleted": ("augmented", "nli-texts", "--op delete --mark [MASK]"),
        "variants": (
            "augmented",
            "deleted",
            "--op span-delete --mark [MASK] --replace --field text=text_a",
        ),
        **{f"sts-{count}": ("sample", "sts", count) for count in COUNTS},
    },
    systems=(
        System("glove"),
        System("no-tuning", checkpoint="base"),
        System("sbert-nli", "sbert {nli/train}"),
        System("clear-base", "clear {variants} --set head=fresh"),
        System("is-bert-nli", "is-bert {nli-texts}"),
        System("ct", CT),
        System("flow", flow="sts"),
        System(
            "consert",
            CONSERT_STS,
            also=("consert-batch96",),
            figures={
                "batch": "96",
                "temperature": "0.1",
                "views": "feature-cutoff,shuffle",
                "texts": "unsupervised,all",
            },
        ),
        System("ct-nli", CT, start="sbert-nli"),
        System("flow-nli", flow="sts", start="sbert-nli"),
        # SBERT in the code of ConSERT: another batch, length and input of the classifier.
        System(
            "consert-sup", "consert {nli/train} --preset sup-{size}", also=("sbert-nli-reimpl",)
        ),
        System("consert-joint", "consert {nli/train} --preset joint-{size}"),
        System(
            "consert-sup-unsup",
            "consert {sts} --preset sup-unsup-{size}",
            start="consert-sup",
            figures={"texts": "supervised,all"},
        ),
        System(
            "consert-joint-unsup",
            "consert {sts} --preset joint-unsup-{size}",
            start="consert-joint",
        ),
        *(
            System(
                f"consert-batch{size}",
                f"{CONSERT_STS} --batch {size}",
                figures={"batch": str(size)},
                trial=size == 16,
            )
            for size in (16, 48, 192, 288)
        ),
        *(
            System(
                f"temperature{value}",
                f"{CONSERT_STS} --set temperature={value}",
                figures={"temperature": str(value)},
                trial=value == 0.05,
            )
            for value in (0.05, 0.08, 0.12, 0.15)
        ),
        *(
            System(
                f"{setting}-texts{count}",
                f"consert {{sts-{count}}} --preset {preset}-{{size}}",
                start,
                figures={"texts": f"{setting},{count}"},
                trial=count == 10,
            )
            for (setting, preset, start), count in product(OF_FEW_TEXTS, COUNTS)
        ),
        *(
            System(
                f"{a}+{b}",
                f"{CONSERT_STS} --set view_a={a} --set view_b={b}",
                figures={"views": f"{a},{b}"},
                trial=a == b == "none",
            )
            for a, b in product(VIEWS, VIEWS)
            if (a, b) != ("feature-cutoff", "shuffle")
        ),
    ),
    figures={
        "pairs": "1",
        "masking": "4",
        "words": "words by frequency",
        "views": "5",
        "texts": "6",
        "temperature": "7",
        "batch": "table 4",
    },
    tables_made_here={
        "words": "words",
        "steps": "steps",
        "figure 4": "gain_without_tokens",
        "figure 5": "without_views",
        "figure 7": "best_temperature",
    },
    impossible={
        "use": USE,
        "infersent-glove": INFERSENT,
        "figure 2": DRAWING,
        "figure 3": Impossible("a drawing of the views"),
        "published word statistics": Impossible("the 28 values are in no source of sentkit"),
        "loss of ct with sigma(1 - z)": Impossible(
            "a slip of its slides, by which a negative pair with z = 2 costs 1.31 instead of 2.13; "
            "the negatives of ct have -log sigma(-z), as in its code",
            tables=("2", "3"),
        ),
    },
    flags={"2": ("--baseline", "consert"), "3": ("--baseline", "consert-joint")},
)

PSC = "pairsupcon {nli/train}"
# The values of the paper are lost; its second row has beta 1.
BETAS = {"row1": 0.5, "row3": 2, "row4": 4, "row5": 8}

PAIRSUPCON = Paper(
    seeds="0",
    recipes={  # the preset of SimCSE: DistilBERT has that of BERT-base, as no paper has another
        "distilbert-base": {"simcse": "bert-base"},
        "bert-base": {"simcse": "bert-base"},
        "bert-large": {"simcse": "bert-large"},
    },
    rows={},
    systems=(
        System("no-tuning", checkpoint="base"),
        System("sbert", "sbert {nli/train} --set final=last"),
        System("simcse-sup", "simcse-sup {nli/triplets} --preset {simcse}"),
        System("pairsupcon", PSC, figures={"abilities": "PairSupCon"}),
        System(
            "pairsupcon-cls-only", f"{PSC} --preset cls", figures={"abilities": "Classification"}
        ),
        System("pairsupcon-id-only", f"{PSC} --preset id", figures={"abilities": "InstanceDisc"}),
        System("pairsupcon-id-only-no-hard-neg", f"{PSC} --preset id-plain", trial=False),
        System("pairsupcon-no-hard-neg", f"{PSC} --preset plain", trial=False),
        *(
            System(f"pairsupcon-beta-sweep-{row}", f"{PSC} --set beta={beta}", trial=False)
            for row, beta in BETAS.items()
        ),
        System("pairsupcon-stsb-dev", f"{PSC} --set final=best"),
    ),
    figures={"scores": "1", "space": "1", "abilities": "3"},
    tables_made_here={"2": "statistics_of_sets", "minutes": "minutes"},
    impossible={
        "figure 2": DRAWING,
        "published words of table 2": Impossible(
            "the values are in no source of sentkit", tables=("2",)
        ),
    },
    flags=dict.fromkeys(("3", "8"), ("--baseline", "pairsupcon")),
    max_length=64,
)

PLUS = "defsent-plus {dictionary} --preset"
STEPS = (  # the first one is evaluated with another readout than the others
    f"{PLUS} {{base}} --set readout={{step1}}",
    *(f"{PLUS} {{base}}-step{number} --set readout={{sts}}" for number in (2, 3, 4)),
)
SMALL = "--batch 16"  # of the two smaller dictionaries: 4,223 and 7,639 steps
ENTRIES = {  # figure -> its entries
    "entries-1": Entries("base"),
    "entries-2": Entries("defsent-plus-1-a"),
    "entries-3": Entries("defsent-plus-2-a"),
    "entries-4": Entries("defsent-plus-3-a"),
    "entries-simcse": Entries("simcse-unsup"),
    "entries-sncse": Entries("sncse"),
}


def readouts(entry, combination, defsent, plain, simcse, sncse):
    """Of definitions, and of STS and SentEval after the last step from three starts, as in table 7.

    The readout of DefSent is not named; its published values are nearest to those of these.
    """
    values = {"entry": entry, "step1": entry, "combination": combination, "defsent": defsent}
    values |= {"sts": plain[0], "senteval": plain[1]}
    for start, (sts, senteval) in (("simcse", simcse), ("sncse", sncse)):
        values |= {f"sts-{start}": sts, f"senteval-{start}": senteval}
    return values


PROMPT = ("prompt", "prompt")  # of STS, and of SentEval
CLS = ("prompt", "cls")
MEAN = ("prompt", "mean")
DEFSENT_PLUS = Paper(
    seeds="0..9",
    recipes={
        "bert-base": readouts("mean", "cls-amp", "mean", MEAN, CLS, MEAN),
        "bert-large": readouts("mean", "cls-amp", "mean", CLS, CLS, CLS),
        "roberta-base": readouts("cls", "mean-ac", "cls", PROMPT, PROMPT, PROMPT),
        "roberta-large": readouts("cls", "mean-ac", "max", ("mean", "prompt"), PROMPT, PROMPT),
    },
    rows={
        "dictionary": ("dictionary", "dictionary/*"),
        "oxford": ("dictionary", "dictionary/oxford*"),
        "single": ("single_tokens", "oxford"),
        "corpus": ("copied", "corpora/*"),
        "negated": ("augmented", "corpus", "--op negate"),
    },
    systems=(
        # As in its own paper: the words of Oxford that are one token of the encoder.
        System("defsent", "defsent {oxford} --preset {base}-{defsent}"),
        System(
            "defsent-plus-1-c",
            f"{STEPS[0].replace('dictionary', 'single')} {SMALL}",
            entries=Entries("base"),
        ),
        System(
            "defsent-plus-1-b",
            f"{STEPS[0].replace('dictionary', 'oxford')} {SMALL}",
            entries=Entries("base"),
        ),
        System(
            "defsent-plus-1-a",
            STEPS[0],
            also=("defsent-plus-1-a-{combination}",),
            entries=Entries("base"),
        ),
        System("defsent-plus-2-a", STEPS[1], entries=Entries("defsent-plus-1-a")),
        System("defsent-plus-3-a", STEPS[2], entries=Entries("defsent-plus-2-a")),
        System(
            "defsent-plus-3-a-ica",
            STEPS[2],
            entries=Entries("defsent-plus-2-a", transform="ica"),
        ),
        # The text of the paper: a fourth step is worse; so is ICA at the first step, and at the
        # second.
        System("defsent-plus-4-a", STEPS[3], added="2", entries=Entries("defsent-plus-3-a")),
        System(
            "defsent-plus-1-a-ica",
            STEPS[0],
            added="2",
            entries=Entries("base", transform="ica"),
        ),
        System(
            "defsent-plus-2-a-ica",
            STEPS[1],
            added="2",
            entries=Entries("defsent-plus-1-a", transform="ica"),
        ),
        # So are a second epoch, and a step that continues from the weights of the step before.
        # Fewer or more iterations of ICA, or centred entries, are not better.
        System(
            "defsent-plus-1-a-epochs2",
            f"{STEPS[0]} --epochs 2",
            added="2",
            entries=Entries("base"),
            trial=False,
        ),
        System(
            "defsent-plus-2-a-continued",
            STEPS[1],
            start="defsent-plus-1-a",
            added="2",
            entries=Entries("defsent-plus-1-a"),
            trial=False,
        ),
        *(
            System(
                f"defsent-plus-3-a-{transform}",
                STEPS[2],
                added="2",
                entries=Entries("defsent-plus-2-a", transform=transform),
                trial=False,
            )
            for transform in ("ica-200", "ica-10000", "centered")
        ),
        System("simcse-unsup", "simcse {corpus} --preset {base}"),
        System("sncse", "sncse {negated} --preset {base}"),
        *(
            System(
                f"{start}+defsent-plus-{number}",
                f"{PLUS} {name}-{{base}}{step} --set readout={{sts-{name}}}",
                start,
                entries=Entries(maker),
            )
            for name, start in (("simcse", "simcse-unsup"), ("sncse", "sncse"))
            for number, step, maker in ((1, "", start), (2, "-step2", f"{start}+defsent-plus-1"))
        ),
        *(
            System(
                f"defsent-plus-1-a-{pooling}-{kind}",
                f"{STEPS[0]} --set pooling={pooling}",
                entries=Entries("base", entry),
            )
            for pooling, (entry, kind) in product(("mean", "cls"), (("mean", "amp"), ("cls", "ac")))
        ),
    ),
    figures={
        "entries-1": "1, 3 to 6",
        "entries-2": "1, 3 to 6",
        "entries-3": "1, 3 to 6",
        "correlations": "1, 3 to 6",
        "entries-4": "7",
        "entries-simcse": "8",
        "entries-sncse": "8",
    },
    tables_made_here={
        "1": "dictionaries",
        "5": "rates",
        "7": "readouts",
        "increments": "increments",
        "space of ICA": "space_of_ica",
        "minutes": "minutes",
    },
    impossible={
        "figure 2": DRAWING,
        "syncse": Impossible(
            "a start of a later version of the paper, in no source of sentkit", tables=("3",)
        ),
    },
    flags={"2": ("--baseline", "defsent-plus-1-a")},
    best_seed=True,
    tables_with_readouts=("4",),  # SentEval
)

PAPERS = {
    "sg-bert": SG_BERT,
    "consert": CONSERT,
    "pairsupcon": PAIRSUPCON,
    "defsent-plus": DEFSENT_PLUS,
}
