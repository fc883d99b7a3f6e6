"""The systems of the four papers: what each is trained with, and its rows of the tables and figures.

A system is said once. `rows` has words of the form TABLE[=NAME][#READOUT][!]: the number of a table or the
name of a figure; the name in the paper, if it differs; the readout, else that of the checkpoint; ! for the
seed that is best on the dev pairs. Without !, a row is the mean of all seeds. TABLE+=NAME adds such a mean
beside the best seed, and +TABLE=NAME a row that the paper does not have. Other rows are made if the paper has
them for the base. A system without a row, from which no other starts, is not trained.

Words in braces are values of the recipe of the base (`recipes`), or prepared rows (`rows` of the paper).
`start` is the system whose checkpoint is the base, of the same seed, or with ! the best on the dev pairs.
`entries` is SYSTEM[!]:READOUT[+ica]: the encoder that makes the entries of DefSent+, and their readout.
"""

from dataclasses import dataclass, field
from itertools import product


@dataclass(frozen=True)
class System:
    name: str
    rows: str = ""
    train: str = ""  # words after `sentkit train`
    start: str = "base"
    entries: str = ""
    fit: str = ""  # rows, the readout of their vectors, and the kind of `sentkit whiten fit`
    given: str = ""  # the checkpoint of a system that is not trained; `?` needs --given NAME=CHECKPOINT
    script: str = ""  # a script of examples/ and its arguments, which prints a table
    trial: bool = True  # a part of --quick


@dataclass(frozen=True)
class Paper:
    seeds: str
    recipes: dict[str, dict[str, str]]  # of a base -> values
    rows: dict[str, tuple]  # name -> how rows are prepared: a function of papers.py and its arguments
    systems: tuple[System, ...]
    figures: dict[str, str]  # number -> functions of papers.py, or why there is none
    tables: dict[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # number -> more flags of `sentkit report`
    notes: dict[str, str] = field(
        default_factory=dict
    )  # number of a table that `report` does not make -> how it is made
    impossible: dict[str, str] = field(default_factory=dict)  # system -> the reason


DEV = "--dev {dev}"
SG = f"sg-bert {{stsb}} {DEV} --set readout=cls"
USE = "Universal Sentence Encoder, a TensorFlow network that sentkit does not run"
INFERSENT = "InferSent, an LSTM that only its own code reads"
SEMEVAL = "a submission to SemEval, which was never published as a model"
SEEDS = "1,2,3,4,1234,2345,3456,7890"
UNTUNED = (
    *(f"{table}#{readout}" for table in (1, 2, 3, 11) for readout in ("cls", "mean", "{wk}")),
    "4#mean",
    "4#{wk}",
)
TASKS = ("qnli", "sst2", "cola", "mrpc", "rte")  # of GLUE

SG_BERT = Paper(
    SEEDS,
    {f"{family}-{size}": {} for family, size in product(("bert", "sbert", "roberta"), ("base", "large"))}
    | {"mbert": {}},
    {
        "stsb": ("texts", "sts/stsb.train", "sts/stsb.dev", "sts/stsb.test"),
        "nli-texts": ("texts_like", "stsb", "nli/train"),  # as many; the paper states no number
        "timed": ("copied", "sts/stsb.train"),
        "paraphrases": ("copied", "paraphrases/stsb"),
        **{
            f"{task}-{part}": ("copied", f"glue/{task}.{part}")
            for task, part in product(TASKS, ("train", "dev", "test"))
        },
    },
    (
        System("glove", "1", given="?"),
        System("cosine-baseline", "3", given="words:binary"),
        System("no-tuning", " ".join(UNTUNED), given="base"),
        System("flow", "1#mean-last2 domains=flow,STS-B#mean-last2", fit="{stsb} mean-last2 flow"),
        System("bt", "1 2 3 7 11", f"sg-bert {{paraphrases}} {DEV} --preset bt --set readout=cls"),
        System("sg", "1 2 3 5 11", f"{SG} --set objective=base"),
        System("sg-opt", "1 2 3 5 5=sg-opt-tau0.01-lambda0.1 7 11 domains=SG-OPT,STS-B", SG),
        System("bt+sg-opt", "7", f"sg-bert {{paraphrases}} {DEV} --preset bt-sg-opt --set readout=cls"),
        System("opt2", "5=sg-opt-loss-opt2", f"{SG} --set objective=opt2"),
        System("opt1", "5=sg-opt-loss-opt1", f"{SG} --set objective=opt1"),
        System("tau0.1", "5=sg-opt-tau0.1", f"{SG} --set temperature=0.1"),
        System("tau0.001", "5=sg-opt-tau0.001", f"{SG} --set temperature=0.001"),
        System("lambda0", "5=sg-opt-lambda0", f"{SG} --set drift_weight=0"),
        System("lambda1", "5=sg-opt-lambda1", f"{SG} --set drift_weight=1"),
        System("no-head", "5=sg-opt-no-head", f"{SG} --set head=none"),
        System("sg-opt-nli", "domains=SG-OPT,NLI", SG.replace("stsb", "nli-texts")),
        System("flow-nli", "domains=flow,NLI#mean-last2", fit="{nli-texts} mean-last2 flow"),
        System("senteval", "4=sg-opt", f"{SG.replace('stsb', 'nli-texts')} --preset senteval"),
        System(
            "efficiency",
            "6=no-tuning#mean 6=no-tuning#{wk} 6=flow 6=sg-opt",
            script="efficiency.py {model} {stsb} {timed} --readout mean --readout {wk} --transform flow"
            " --train sg-bert",
        ),
        *(
            System(
                f"{start}-{task}",
                f"10={start}",
                f"classify {{{task}-train}} --dev {{{task}-dev}} --test {{{task}-test}}"
                f" --preset sg-bert-glue{'-cola' * (task == 'cola')}",
                # Appendix A.4 names no other encoder than that of table 1.
                start={"no-tuning": "base"}.get(start, start),
            )
            for task, start in product(TASKS, ("no-tuning", "sg-opt"))
        ),
    ),
    {
        "1": "layers",
        "2": "a drawing of the method",
        "3": "a drawing of the method",
        "4": "domains",
        "5": "space",
        "6": "space",
    },
    {
        "1": ("--baseline", "sg-opt"),
        "4": ("--head", "senteval:50", "--seed", "{seeds}"),  # of table 9
        "5": ("--baseline", "sg-opt"),
        "7": ("--baseline", "sg-opt"),
        "11": ("--baseline", "sg-opt"),
    },
    {
        "figure 1": "extremes",
        "figure 4": "losses",
        "6": "efficiency",
        "8": "settings",
        "9": "settings",
        "10": "glue",
    },
    {"use": USE, "umcc-dlsi-run2": SEMEVAL, "ecnu": SEMEVAL},
)

CONSERT_VIEWS = ("none", "shuffle", "token-cutoff", "feature-cutoff", "dropout")


def consert(**settings):
    """The training of table 2 with other settings."""
    words = " ".join(f"--set {name}={value}" for name, value in settings.items())
    return f"consert {{sts}} {DEV} --preset unsup-{{size}} {words}".rstrip()


CONSERT = Paper(
    "1",
    {
        f"{family}-{size}": {"size": size, "family": family}
        for family, size in product(("bert", "roberta"), ("base", "large"))
    },
    {
        "sts": ("texts", "sts/sts1[2-6]*", "sts/stsb.*", "sts/sickr.*"),
        "nli": ("copied", "nli/train"),
        "premises": ("texts", "nli/train"),
        "corpus": ("texts", "corpora/*"),  # the paper counts words of Wikipedia
        "deleted": ("augmented", "premises", "--op delete --mark [MASK]"),
        "variants": ("augmented", "deleted", "--op span-delete --mark [MASK] --replace --field text=text_a"),
        **{f"sts-{count}": ("sample", "sts", count) for count in (10, 100, 1000, 10000)},
    },
    (
        System("glove", "1 2", given="?"),
        System("no-tuning", "1#cls 1#mean 2#mean-last2", given="base"),
        System("sbert-nli", "1 3 3=sbert-nli-reimpl", f"sbert {{nli}} {DEV}"),
        System("clear-base", "2", f"clear {{variants}} --set head=fresh {DEV}"),
        System("is-bert-nli", "2", f"is-bert {{premises}} {DEV}"),
        System("ct", "2", f"ct {{sts}} {DEV}"),
        System("flow", "2#mean-last2", fit="{sts} mean-last2 flow"),
        System(
            "consert", "2 4=consert-batch96 batch=96 temperature=0.1 views=feature-cutoff,shuffle", consert()
        ),
        System("ct-nli", "3", f"ct {{sts}} {DEV}", start="sbert-nli"),
        # The row has an encoder that is trained on NLI.
        System("flow-nli", "3#mean-last2", fit="{sts} mean-last2 flow", start="sbert-nli"),
        System("consert-sup", "", f"consert {{nli}} {DEV} --preset sup-{{size}}"),
        System("consert-joint", "3", f"consert {{nli}} {DEV} --preset joint-{{size}}"),
        System("consert-sup-unsup", "3", consert().replace("unsup-", "sup-unsup-"), start="consert-sup"),
        System(
            "consert-joint-unsup", "3", consert().replace("unsup-", "joint-unsup-"), start="consert-joint"
        ),
        *(
            System(
                f"batch{size}", f"4=consert-batch{size} batch={size}", consert(batch=size), trial=size == 16
            )
            for size in (16, 48, 192, 288)
        ),
        *(
            System(
                f"temperature{value}", f"temperature={value}", consert(temperature=value), trial=value == 0.05
            )
            for value in (0.05, 0.08, 0.12, 0.15)
        ),
        *(
            System(
                f"texts{count}",
                f"texts={count}",
                consert(warmup=0).replace("{sts}", f"{{sts-{count}}}"),
                trial=count == 10,
            )
            for count in (10, 100, 1000, 10000)
        ),
        *(
            System(f"{a}+{b}", f"views={a},{b}", consert(view_a=a, view_b=b), trial=a == b == "none")
            for a, b in product(CONSERT_VIEWS, repeat=2)
            if (a, b) != ("feature-cutoff", "shuffle")
        ),
    ),
    {
        "1": "pairs",
        "2": "a drawing of the method",
        "3": "a drawing of the views",
        "4": "masking words",
        "5": "views",
        "6": "texts",
        "7": "temperature",
        "table 4": "batch",
    },
    {"2": ("--baseline", "consert"), "3": ("--baseline", "consert-joint")},
    {"words": "words", "steps": "steps"},
    {"use": USE, "infersent-glove": INFERSENT},
)

BETAS = {"row1": 0.5, "row3": 2, "row4": 4, "row5": 8}  # the paper's are lost; row 2 is beta=1
PSC = "pairsupcon {nli} " + DEV

PAIRSUPCON = Paper(
    "0",
    {base: {} for base in ("distilbert-base", "bert-base", "bert-large")},
    {"nli": ("copied", "nli/train"), "triplets": ("copied", "nli/triplets")},
    (
        System("no-tuning", "1#mean 3#mean 6#mean 7#mean", given="base"),
        System("sbert", "1 3 6 7", f"sbert {{nli}} {DEV} --set final=last"),
        System("simcse-sup", "1 3 6 7", f"simcse-sup {{triplets}} {DEV}"),
        System("pairsupcon", "1 3 4 5 6 7 8 abilities=PairSupCon", PSC),
        System("cls", "4=pairsupcon-cls-only abilities=Classification", f"{PSC} --preset cls"),
        System(
            "id", "4=pairsupcon-id-only 5=pairsupcon-id-only abilities=InstanceDisc", f"{PSC} --preset id"
        ),
        System("id-plain", "5=pairsupcon-id-only-no-hard-neg", f"{PSC} --preset id-plain"),
        System("plain", "5=pairsupcon-no-hard-neg", f"{PSC} --preset plain"),
        *(
            System(
                f"beta{beta}",
                f"4=pairsupcon-beta-sweep-{row}",
                f"{PSC} --set beta={beta}",
                trial=row == "row3",
            )
            for row, beta in BETAS.items()
        ),
        System("stsb-dev", "8=pairsupcon-stsb-dev", f"{PSC} --set final=best"),
    ),
    {"1": "scores space", "2": "a drawing of the method", "3": "abilities"},
    {"3": ("--baseline", "pairsupcon"), "8": ("--baseline", "pairsupcon")},
    {"2": "statistics_of_sets"},
)

PLUS = f"defsent-plus {{dictionary}} {DEV} --preset"


def plus(name, rows, step, entries, rows_of="dictionary", more=""):
    """A training of DefSent+. The first step is evaluated with another readout than the others."""
    readout = "step1" if step == "" else "sts"
    words = (
        f"{PLUS.replace('dictionary', rows_of)} {{base}}{step} --set readout={{{readout}}} {more}".rstrip()
    )
    return System(name, rows, words, entries=entries)


def plus_from(start, name, rows, maker, step=""):
    words = f"{PLUS} {start}-{{base}}{step} --set readout={{sts-{start}}}"
    return System(name, rows, words, f"{start}!", f"{maker}:{{entry}}")


def of_defsent(entry, combination, sts, senteval, simcse, sncse, defsent):
    """Readouts: of definitions, after step 1, and of each suite after the last step, as in table 7."""
    readouts = {
        "sts-simcse": simcse[0],
        "senteval-simcse": simcse[1],
        "sts-sncse": sncse[0],
        "senteval-sncse": sncse[1],
    }
    own = {"entry": entry, "step1": entry, "combination": combination, "defsent": defsent}
    return {**own, "sts": sts, "senteval": senteval, **readouts}


PROMPT = ("prompt", "prompt")
DEFSENT_PLUS = Paper(
    "0..9",
    {  # DefSent's readout is not named; its published values are nearest to those of these
        "bert-base": of_defsent(
            "mean", "cls-amp", "prompt", "mean", ("prompt", "cls"), ("prompt", "mean"), "mean"
        ),
        "bert-large": of_defsent(
            "mean", "cls-amp", "prompt", "cls", ("prompt", "cls"), ("prompt", "cls"), "mean"
        ),
        "roberta-base": of_defsent("cls", "mean-ac", "prompt", "prompt", PROMPT, PROMPT, "cls"),
        "roberta-large": of_defsent("cls", "mean-ac", "mean", "prompt", PROMPT, PROMPT, "max"),
    },
    {
        "dictionary": ("dictionary", "dictionary/*"),
        "oxford": ("dictionary", "dictionary/oxford*"),
        "single": ("single_tokens", "dictionary"),
        "corpus": ("copied", "corpora/*"),
        "negated": ("augmented", "corpus", "--op negate"),
    },
    (
        System("defsent", "2 4", f"defsent {{dictionary}} {DEV} --preset {{base}}-{{defsent}}"),
        # The batch of the two smaller dictionaries: 4,223 and 7,639 steps.
        plus("1-c", "2=defsent-plus-1-c", "", "base:{entry}", "single", "--set batch=16"),
        plus("1-b", "2=defsent-plus-1-b", "", "base:{entry}", "oxford", "--set batch=16"),
        plus("1-a", "2=defsent-plus-1-a 8=defsent-plus-1-a-{combination}", "", "base:{entry}"),
        plus("2-a", "2=defsent-plus-2-a", "-step2", "1-a!:{entry}"),
        plus(
            "3-a",
            "2=defsent-plus-3-a 4=defsent-plus-3-a#{senteval}! 4+=defsent-plus-3-a#{senteval}"
            " 6=defsent-plus-3-a! 6+=defsent-plus-3-a",
            "-step3",
            "2-a!:{entry}",
        ),
        plus(
            "3-a-ica",
            "2=defsent-plus-3-a-ica 4=defsent-plus-3-a-ica#{senteval}! 4+=defsent-plus-3-a-ica#{senteval}"
            " 6=defsent-plus-3-a-ica! 6+=defsent-plus-3-a-ica",
            "-step3",
            "2-a!:{entry}+ica",
        ),
        # The text of the paper: a fourth step is worse; so is ICA at the first step, and at the second.
        plus("4-a", "+2=defsent-plus-4-a", "-step4", "3-a!:{entry}"),
        plus("1-a-ica", "+2=defsent-plus-1-a-ica", "", "base:{entry}+ica"),
        plus("2-a-ica", "+2=defsent-plus-2-a-ica", "-step2", "1-a!:{entry}+ica"),
        System(
            "simcse",
            "3=simcse-unsup! 3+=simcse-unsup 4=simcse-unsup! 4+=simcse-unsup",
            f"simcse {{corpus}} {DEV} --preset {{base}}",
        ),
        System("sncse", "3=sncse! 3+=sncse 4=sncse! 4+=sncse", f"sncse {{negated}} {DEV} --preset {{base}}"),
        *(
            plus_from(
                start,
                f"{start}+{step}",
                "3={0}! 3+={0} 4={0}#{{senteval-{1}}}! 4+={0}#{{senteval-{1}}} 6={0}".format(
                    f"{name}+defsent-plus-{step}", start
                ),
                maker,
                "" if step == 1 else "-step2",
            )
            for start, name in (("simcse", "simcse-unsup"), ("sncse", "sncse"))
            for step, maker in ((1, f"{start}!"), (2, f"{start}+1!"))
        ),
        *(
            plus(
                f"1-a-{pooling}-{entry}",
                f"8=defsent-plus-1-a-{pooling}-{kind}",
                "",
                f"base:{entry}",
                more=f"--set pooling={pooling}",
            )
            for pooling, (entry, kind) in product(("mean", "cls"), (("mean", "amp"), ("cls", "ac")))
        ),
    ),
    {
        "1 and 3 to 6": "entries-1 entries-2 entries-3 correlations",
        "2": "a drawing of the method",
        "7": "entries-4",
        "8": "entries-simcse entries-sncse",
    },
    {"2": ("--baseline", "defsent-plus-1-a")},
    {"1": "dictionaries", "7": "readouts"},
)

PAPERS = {"sg-bert": SG_BERT, "consert": CONSERT, "pairsupcon": PAIRSUPCON, "defsent-plus": DEFSENT_PLUS}
