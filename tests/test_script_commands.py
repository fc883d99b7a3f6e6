"""The commands of the example scripts, with a `sentkit` that records its command line and makes empty files.

So the scripts run in seconds with the values of the papers, which --quick replaces.
"""

import gzip
import json
import os
import shlex
import subprocess
import sys
from functools import cache, partial
from itertools import pairwise

import pytest

from sentkit.training.catalogue import METHODS
from sentkit.training.settings import build, chosen_readout
from support import PAIRS, ROOT, TEXTS, WORDS, copy_tokenizer, in_jsonl

# An input must exist, and `train` needs two rows. A command that matches $FAIL exits with $CODE.
SENTKIT = """#!/bin/sh
printf '%s\\0' "$@" >>"$RECORD"
echo >>"$RECORD"
command=$1 rows=$2 out='' before=''
fail() { echo "recorder: $command: $1" >&2; exit "$2"; }
for word; do
    case $before in
    -o) out=$word ;;
    --log | --results) ;;
    *)
        case $word in
        *=/*) path=${word#*=} && path=${path%@*} && [ -e "${path%%#*}" ] || fail "$path: no such file" 66 ;;
        *=*) ;;
        *.jsonl | *.gz | *.safetensors | base | /*/runs/*) [ -e "$word" ] || fail "$word: no such file" 66 ;;
        esac
        ;;
    esac
    before=$word
done
content() { case $1 in *.gz) gzip -dc "$1" ;; *) cat "$1" ;; esac; }
# shellcheck disable=SC2254 # a pattern
case "$*" in
${FAIL:-nothing})
    [ "$command" != cat ] || content "$rows" | sed -n 1p
    fail 'fails as set' "${CODE:-1}"
    ;;
esac
case $command in
cat) content "$rows" ;;
augment) content "$rows" ;;
train)
    [ "$(content "$3" | wc -l)" -ge 2 ] || fail "$3: needs at least 2 rows" 65
    mkdir -p "$out" && echo '{}' >"$out/config.json" && echo '{}' >"$out/sentkit.json"
    echo '{"checkpoint":"'"$out"'","seed":0,"step":1,"dev":1,"test":{"accuracy":80,"f1":80,"matthews":null}}'
    exit
    ;;
score) echo '{"encoder":"base/mean:000000000000","spearman":1}' ;;
esac
case "$*" in *'--readout L'*,*) mkdir -p "$out" && out=$out/L0.safetensors ;; esac # a file for each readout
[ -z "$out" ] || : >"$out"
"""
# Without the parts of scripts that load torch or transformers. Figures of papers are recorded like commands.
PYTHON = f"""#!/bin/sh
case $* in
"- "*) # vectors without frequent tokens
    for last; do :; done
    : >"$last"
    exit
    ;;
"-m sentkit.papers."*)
    printf 'figures\\0\\n' >>"$RECORD"
    for word; do [ "$last" != -o ] || : >"$word"; last=$word; done
    exit
    ;;
*efficiency.py* | *AutoTokenizer*) exit ;;
esac
exec {shlex.quote(sys.executable)} "$@"
"""


@pytest.fixture(scope="module")
def furnished(tmp_path_factory):
    """The programs in bin, and the data of all papers in data, some of it compressed."""
    folder = tmp_path_factory.mktemp("commands")
    several = [f"{text} {end}" for end in ("", "today", "again", "here") for text in TEXTS]
    nli = [{"text_a": text, "text_b": text, "label": "neutral"} for text in several]
    entries = sorted(WORDS)[:6]
    files = {
        **dict.fromkeys(("sts/stsb.train", "sts/stsb.dev", "sts/stsb.test", "sts/sickr.test"), PAIRS),
        "nli/train": nli,
        "nli/triplets": nli,
        "dictionary/own": [{"entry": entries[n % 6], "definition": text} for n, text in enumerate(several)],
        "dictionary/second": [{"entry": entry, "definition": "a word"} for entry in entries],
        "clustering/stackoverflow": [{"text": text, "label": 0} for text in several],
        "corpora/own": [{"text": text} for text in several],
        "senteval/mr": [],
        **{f"glue/rte.{part}": nli for part in ("train", "dev", "test")},
    }
    for name, rows in files.items():
        path = folder / f"data/{name}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(in_jsonl(*rows).encode()))
    (folder / "base").mkdir()
    (folder / "base/config.json").write_text(json.dumps({"model_type": "bert"}))
    copy_tokenizer(folder / "base")
    (folder / "bin").mkdir()
    for name, text in {"sentkit": SENTKIT, "python3": PYTHON}.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    return folder


def run_script(furnished, folder, name, *arguments, **variables):
    """The finished script, and the commands of sentkit."""
    given = {
        "PATH": f"{furnished / 'bin'}:{os.environ['PATH']}",
        "RECORD": str(folder / "record"),
        "OUT": str(folder / "out"),
    }
    done = subprocess.run(
        ["sh", ROOT / f"examples/{name}.sh", *arguments],
        cwd=furnished,
        env={**os.environ, **given, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (folder / "record").read_text().splitlines() if (folder / "record").exists() else []
    return done, [line.replace(f"{folder}/out/", "").split("\0")[:-1] for line in lines]


@pytest.fixture
def script(furnished, tmp_path):
    """`script("papers/consert", "base", "data")`: the finished script, and the commands of sentkit."""
    return partial(run_script, furnished, tmp_path)


@pytest.fixture(scope="module")
def recipe(furnished, tmp_path_factory):
    """`recipe("consert")`: the same for the script of a paper, once for all tests."""

    @cache
    def run(paper, **variables):
        folder = tmp_path_factory.mktemp(paper)
        return run_script(furnished, folder, f"papers/{paper}", "base", "data", **variables)

    return run


def settings_of(command):
    """Build the settings of a command `train`, as the program does."""
    kind, preset, assignments = METHODS[command[1]].load(), None, []
    for name, value in zip(command, [*command[1:], ""], strict=True):
        if name == "--preset":
            preset = value
        elif name == "--set":
            assignments.append(value)
        elif name in ("--lr", "--batch", "--epochs"):
            assignments.append(f"{name[2:]}={value}")
    return build(kind.Settings, kind.presets, preset, assignments)


@pytest.mark.parametrize(
    ("paper", "message"),
    [
        ("sg-bert", "not made: table 7 and the rows of BT: PARAPHRASES is not set"),
        ("consert", "not made: figure 6, the point of 1 text: a batch of one text has no negatives"),
        ("pairsupcon", "training simcse-sup"),
        ("defsent-plus", "defsent_plus.sh for sncse+1"),
    ],
)
def test_the_recipe_of_a_paper_finishes(recipe, paper, message):
    """All inputs of a command exist, and all settings are valid."""
    done, commands = recipe(paper)
    trained = [command for command in commands if command[0] == "train"]

    assert done.returncode == 0, done.stderr[-2000:]
    assert f"{paper}.sh: {message}\n" in done.stderr
    assert len(trained) > 8
    assert [settings_of(command) for command in trained]
    assert commands[-1][0] in ("plot", "report", "figures")


def trained(commands):
    """The settings and the base of each run, by its folder."""
    runs = (command for command in commands if command[0] == "train")
    values = ((settings_of(command), dict(pairwise(command))) for command in runs)
    return {given["-o"].removeprefix("runs/"): (settings, given["-m"]) for settings, given in values}


def test_consert_fits_the_flow_of_table_3_to_an_encoder_trained_on_nli(recipe):
    lines = recipe("consert")[1]
    fits = {words[-1]: words for words in lines if words[:2] == ["whiten", "fit"]}
    vectors = next(words for words in lines if "rows/flow-nli-rows.safetensors" in words)
    table = next(words for words in lines if words[0] == "report" and "3" in words)

    assert "rows/flow-nli-rows.safetensors" in str(fits)
    assert vectors[vectors.index("-m") + 1] == "runs/sbert"
    assert "flow-nli=runs/sbert#mean-last2@rows/flow-nli.safetensors" in table
    assert trained(lines)["sbert"][1] == "base"


def test_sg_bert_reads_cls_and_glue_starts_from_the_encoder_of_table_1(recipe):
    runs = trained(recipe("sg-bert")[1])

    assert {chosen_readout(runs[name][0]) for name in ("sg", "sg-opt", "opt1", "senteval")} == {"cls"}
    assert runs["no-tuning-rte"][1] == "base"
    assert runs["sg-opt-rte"][1] == "runs/sg-opt"
    settings = runs["sg-opt"][0]
    assert (settings.guide_pool, settings.guide_layers, settings.temperature) == ("max", "all", 0.01)


@pytest.mark.parametrize(
    ("preset", "rates", "more"),
    [  # the table of learning rates: steps 1 to 3, from SimCSE, from SNCSE; DefSent with [CLS]
        ({}, (5e-5, 4e-5, 3e-5, 3e-5, 2e-5), {"defsent": 5.657e-6, "simcse": 3e-5}),
        ({"PRESET": "roberta-large"}, (3e-5, 2e-5, 1e-5, 3e-5, 1e-6), {"defsent": 4e-6, "simcse": 3e-5}),
    ],
)
def test_defsent_plus_has_the_rates_and_batches_of_the_paper(recipe, preset, rates, more):
    runs = trained(recipe("defsent-plus", **preset)[1])
    names = [f"steps/step-{n}" for n in (1, 2, 3)] + ["simcse+1/step-1", "sncse+1/step-1"]

    assert tuple(runs[name][0].lr for name in names) == rates
    assert {name: runs[name][0].lr for name in more} == more
    # 331,472 definitions in 10,359 steps, 122,209 in 7,639 and 67,553 in 4,223
    batches = {name: runs[f"{name}/step-1"][0].batch for name in ("steps", "second", "single", "simcse+1")}
    assert batches == {"steps": 32, "second": 16, "single": 16, "simcse+1": 32}
    assert (runs["simcse+1/step-1"][1], runs["sncse+1/step-1"][1]) == ("runs/simcse", "runs/sncse")


def test_pairsupcon_has_its_batch_and_keeps_the_last_weights(recipe):
    runs = trained(recipe("pairsupcon")[1])

    others = ("sbert", "simcse-sup")

    assert {settings.batch for name, (settings, _) in runs.items() if name not in others} == {1024}
    assert (runs["pairsupcon"][0].final, runs["stsb-dev"][0].final) == ("last", "best")
    assert runs["id-plain"][0].hard_negatives is False


def test_only_too_few_layers_leave_out_the_rows_of_wk(script):
    """Exit code 2 is that of a readout that the base does not have."""
    fail = "encode * --readout wk *"
    done, commands = script("papers/sg-bert", "base", "data", FAIL=fail, CODE="2")
    other, stopped = script("papers/sg-bert", "base", "data", FAIL=fail, CODE="74", OUT="other")

    assert done.returncode == 0
    assert "not made: the rows of WK: the base has too few layers" in done.stderr
    assert other.returncode == 74
    assert "not made: the rows of WK" not in other.stderr
    assert stopped[-1][0] == "encode"
    assert len(commands) > 30
    assert "| sg-opt | rte | 1 | 80.00 | 80.00 | undefined |\n" in done.stdout


@pytest.mark.parametrize(
    ("name", "arguments", "fail"),
    [
        ("papers/consert", ("--quick", "base", "data"), "cat *"),
        ("papers/sg-bert", ("base", "data"), "encode *-m */runs/sg -o *"),
        ("reverse_dictionary", ("data/dictionary/own.jsonl.gz", "base"), "cat *"),
        ("reverse_dictionary", ("data/dictionary/own.jsonl.gz", "base"), "encode *"),
        ("reverse_dictionary", ("data/dictionary/own.jsonl.gz", "base"), "encode *pooler:*"),
        ("sweep", ("simcse", "rows=2"), "cat *"),
    ],
)
def test_a_script_ends_with_the_first_command_that_fails(script, name, arguments, fail):
    """It does not continue with a part of the output."""
    data = {"ROWS": "data/sts/stsb.train.jsonl.gz", "DEV": "data/sts/stsb.dev.jsonl.gz"}
    done, commands = script(name, *arguments, FAIL=fail, **data)

    assert done.returncode == 1
    assert done.stderr.endswith("fails as set\n")
    assert commands[-1][0] == fail.partition(" ")[0]


def test_invalid_rows_end_a_script(script, furnished, tmp_path):
    """`texts` reads rows without sentkit."""
    for path in (furnished / "data/sts").iterdir():
        (tmp_path / "data/sts").mkdir(parents=True, exist_ok=True)
        (tmp_path / "data/sts" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "data/nli").mkdir()
    (tmp_path / "data/nli/train.jsonl").write_text(in_jsonl(PAIRS[0]) + "{")
    done, commands = script("papers/sg-bert", "base", str(tmp_path / "data"))

    assert done.returncode == 1
    assert not any(word.endswith("runs/sg-opt-nli") for command in commands for word in command)
