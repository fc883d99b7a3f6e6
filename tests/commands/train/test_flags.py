"""The flags of `sentkit train`: settings, precedence, and refusals before the first step."""

import json
from itertools import chain, pairwise

import pytest


def test_flags_are_settings_and_the_last_one_wins(train, dev, tmp_path):
    train(
        *("--preset", "bert-large", "--set", "temperature=0.1", "--set", "max_length=16", "--epochs", 2),
        *("--dev", dev, "--set", "final=last", "--set", "final=best", "--set", "batch=2", "--batch", 5),
    )
    run = json.loads((tmp_path / "out/sentkit.json").read_text())["run"]

    assert (run["lr"], run["temperature"], run["max_length"], run["epochs"]) == (1e-5, 0.1, 16, 2)
    assert (run["final"], run["batch"]) == ("best", 5)


@pytest.mark.parametrize("flags", [("--set", "lr=1", "--lr", 2), ("--lr", 2, "--set", "lr=1")])
def test_a_flag_wins_over_a_setting_of_the_same_name(sentkit, tiny, texts, tmp_path, flags):
    done = sentkit("train", "simcse", texts, "-m", tiny, "-o", "out", "--threads", 1, "--batch", 5, *flags)

    assert json.loads((tmp_path / "out/sentkit.json").read_text())["run"]["lr"] == 2.0
    assert "sentkit train: warning: --set lr=1 has no effect: --lr 2.0 overrides it" in done.told


def test_every_method_is_listed_with_its_settings(sentkit):
    from sentkit.training.catalogue import METHODS

    listed = sentkit("train", "--list").out.decode()
    for name in METHODS:
        told = " ".join(sentkit("train", name, "--list").out.decode().split())
        assert name in listed
        assert "epochs=" in told
        assert told.count("[paper]") + told.count("[released code]") + told.count("[our choice]") >= 20


def test_the_methods_are_in_three_groups(on_terminal):
    """Each method is in one of them; the columns have equal places."""
    from sentkit.training.catalogue import METHODS

    lines = on_terminal("train", "--list")
    starts = [0, *(place + 1 for place, line in enumerate(lines) if not line), len(lines) + 1]
    groups = {lines[a].partition("  ")[0]: lines[a + 1 : b - 1] for a, b in pairwise(starts)}
    names = {heading: [line.split()[0] for line in own] for heading, own in groups.items()}

    assert list(names) == ["for products", "without labels", "of papers"]
    assert names["for products"] == ["contrast", "distill", "classify", "sbert", "cosent", "angle"]
    assert names["without labels"][:3] == ["simcse", "tsdae", "mlm"]
    assert {"sg-bert", "consert", "pairsupcon", "defsent", "defsent-plus"} < {*names["of papers"]}
    assert sorted(chain(*names.values())) == sorted(METHODS)
    assert {line.find("description") for line in lines} == {-1, 16}


WRONG = [
    (("--set", "temprature=1"), 2, 'unknown setting "temprature"', 'did you mean "temperature"?'),
    (("--set", "temperature=-1"), 2, "temperature=-1: expected more than 0", None),
    (("--set", "temperature"), 2, '--set "temperature": expected name=value', None),
    (("--set", "optimizer=sgd"), 2, "optimizer=sgd: available: adam, adamw, adamw-hf, adamw-bert", None),
    (("--set", "dedup=maybe"), 2, 'dedup: "maybe" is not on or off', None),
    (("--epochs", "0"), 2, "epochs=0: expected 1 or more", None),
    (("--lr", "nan"), 2, "--lr nan: expected a finite number", None),
    (("--preset", "huge"), 2, 'unknown preset "huge"', "available: bert-base, bert-large"),
    (("--seed", "9..1"), 2, '--seed "9..1"', "expected 7, or 1,2,3, or 0..9"),
    (("--device", "tpu"), 2, 'unknown device "tpu"', "available: cpu, cuda"),
    (("--dev", "absent.jsonl"), 66, "absent.jsonl: no such file", None),
    (("-m", "./no/such"), 66, "./no/such: no such checkpoint folder", None),
    (("--test", "absent.jsonl"), 2, "simcse does not use --test", None),
    (("--batch", "1"), 2, "batch=1: this method needs a batch of 2 or more", None),
    (("--set", "patience=3"), 2, "patience has no effect without --dev", None),
    (("--set", "final=last"), 2, "final has no effect without --dev", None),
    (("--set", "max_length=500"), 2, "max_length=500: ", "use --set max_length=128"),
]


@pytest.mark.parametrize(("flags", "code", "problem", "advice"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_flags_are_refused(train, tmp_path, flags, code, problem, advice):
    done = train(*flags)

    assert done.code == code
    assert done.told[0].startswith(f"sentkit train: {problem}")
    assert advice is None or done.told[1].strip().startswith(advice)
    assert len(done.told) <= 2
    assert not (tmp_path / "out").exists()


def test_unknown_and_missing_methods_are_refused(sentkit, texts):
    wrong = sentkit("train", "simsce", texts, "-o", "out")
    rows = sentkit("train", texts, "-o", "out")
    none = sentkit("train")
    where = sentkit("train", "simcse", texts)

    assert wrong.code == 2
    assert wrong.told == ['sentkit train: unknown method "simsce"', '  did you mean "simcse"?']
    assert (rows.code, "the method is the first word: sentkit train METHOD" in rows.err) == (2, True)
    assert (none.code, none.told[0]) == (2, "sentkit train: METHOD is missing")
    assert where.code == 2
    assert where.told == ["sentkit train: -o is missing: give the folder of the new checkpoint"]


def test_a_run_with_only_warm_up_steps_is_refused(sentkit, tiny, texts):
    done = sentkit("train", "mlm", texts, "-m", tiny, "--set", "head=fresh", "-o", "out", "--threads", 1)

    problem = "sentkit train: the learning rate is 0 in all 1 steps, because all are warm-up steps"
    assert (done.code, done.told[1]) == (2, problem)


def test_world_size_without_rank_is_refused(train, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    done = train()

    assert (done.code, done.told[0]) == (2, "sentkit train: WORLD_SIZE is 2, but RANK is not set")
