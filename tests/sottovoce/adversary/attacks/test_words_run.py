"""A run of texts under attack, by the command."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from client.models.tokens import joined
from mechanisms.vocabulary import NOTHING, Vocabulary
from simulations.analysis.attack_results import table as markdown
from simulations.experiment import load, to_toml
from sottovoce.adversary.attacks import attributes, word_attributes
from sottovoce.adversary.attacks.run import Attack, run
from sottovoce.adversary.attacks.words import ATTACKS
from sottovoce.adversary.estimators import tokens
from sottovoce.cli.main import main
from tests.server.test_masked_lm import tiny_masked_lm
from tests.support.attacked_words import SIGMAS, text
from tests.support.studies import USERS, LocalGrid, placed, run_arms, use_folder
from tests.support.texts import RANDOM, SANTEXT, TOKENS, VERBATIM, installed, text_prepared, text_study

ARMS = {
    "no noise": {"reference": True, "text": VERBATIM},
    "santext ε=6": {"text": SANTEXT},
    "random": {"text": RANDOM},
    "madlib": {"text": {"mechanism": "madlib", "epsilon": 6.0, "tokens": TOKENS}},
}


#: Of mechanisms that read the whole text.
READERS = {
    "no noise": {"reference": True, "text": VERBATIM},
    "loud": {
        "reference": True,
        "text": {"mechanism": "custext-importance", "epsilon": 20.0, "rest": 20.0, "k": 4, "tokens": TOKENS},
    },
    "silent": {"text": {"mechanism": "dp-mlm", "epsilon": 0.001, "tokens": TOKENS}},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run folder of 60 users, made without Flower: its experiment, its nodes, their ledgers."""
    return run_of(ARMS, tmp_path_factory)


def run_of(arms, tmp_path_factory):
    shared = tmp_path_factory.mktemp("shared")
    out = tmp_path_factory.mktemp("run")
    sections = {"training": {"epochs": 1}, "text": {"masked-lm": "bundled"}}
    study = text_study(shared, *({"name": name, **values} for name, values in arms.items()), **sections)
    installed(shared / "words")
    with pytest.MonkeyPatch.context() as patch:
        use_folder(out / "nodes", patch)
        ready = text_prepared(study, shared)
        grid = LocalGrid(placed(study, ready, out / "nodes"))
        run_arms(study, grid, ready=ready, models=out / "models", nodes=out / "nodes")
    (out / "experiment.toml").write_text(to_toml(study), encoding="utf-8")
    return out


def spread(p):
    """Standard error of a rate, where what was measured shows none; the tokens of a text count as one."""
    return math.sqrt(max(0.0, p * (1 - p)) / USERS)


def test_releases_of_one_text_add_their_losses():
    """n at once are allowed what one release of n times the ε is."""
    prior = np.array([0.4, 0.3, 0.2, 0.1])
    for n in (1, 2, 5):
        assert tokens.randomized(prior, 0.5 * n) == pytest.approx(
            max(math.exp(0.5 * n) * s / (math.exp(0.5 * n) + k) for k, s in enumerate(np.cumsum(prior)))
        )
    weak, strong = (text({"mechanism": "santext", "epsilon": e}) for e in (0.4, 2.0))
    frequencies = np.full(len(weak.vocabulary) + 1, 1 / (len(weak.vocabulary) + 1))
    assert tokens.bound(weak, frequencies, releases=5) == pytest.approx(tokens.bound(strong, frequencies), rel=1e-6)
    assert tokens.bound(weak, frequencies) < tokens.bound(strong, frequencies)


def test_a_run_under_attack(finished, tmp_path, capsys):
    checkpoint = tiny_masked_lm(tmp_path / "model")
    chosen = [word for name in ATTACKS for word in ("--attack", name)]
    assert main(["attack", str(finished), "--json", "--masked-lm", str(checkpoint), *chosen]) == 0
    out, err = capsys.readouterr()
    results = json.loads(out)
    assert json.loads((finished / "attacks.json").read_text()) == results
    assert not any("membership" not in line for line in results["skipped"]) and "released texts of stage train" in err
    entries = {(e["arm"], e["attack"]): e for e in results["entries"]}
    assert set(entries) == {(arm, name) for arm in ARMS for name in ATTACKS}
    for e in entries.values():
        assert 0 <= e["baseline"] <= 1 and e["texts"] == USERS
        for limit in (e["bound"], e["best"]):
            assert limit is None or e["success"] <= limit + SIGMAS * max(e["error"], spread(limit)) + 1e-9
        if e["expected"] is not None:
            assert abs(e["success"] - e["expected"]) <= SIGMAS * max(e["error"], spread(e["expected"])) + 1e-9
    assert entries["no noise", "bayes"]["success"] == entries["no noise", "copy"]["success"] == 1.0
    assert entries["no noise", "bayes"]["best"] == pytest.approx(entries["no noise", "bayes"]["bound"]) == 1.0
    assert entries["no noise", "linkage"]["auc"] > 0.95
    random, noisy = entries["random", "bayes"], entries["santext ε=6", "bayes"]
    assert random["success"] == random["baseline"] and random["bound"] < noisy["best"] < 1
    assert noisy["success"] > random["success"] and entries["no noise", "bayes"]["worst_case_epsilon"] == "inf"
    assert entries["madlib", "bayes"]["best"] is None and entries["madlib", "bayes"]["law"].startswith("estimated")
    assert entries["no noise", "context"]["success"] == entries["no noise", "strongest"]["success"] == 1.0
    strongest = entries["santext ε=6", "strongest"]["note"]
    assert strongest.endswith("of 4") and strongest.split(", ")[0].split(" and ")[0] in ATTACKS
    said = (finished / "attacks.md").read_text()
    assert "| no noise | bayes | 1 | 0." in said and "exact, each for itself" in said and "Best possible" in said
    assert not any(e["alarm"] for e in results["entries"])
    assert main(["attack", str(finished), "--attack", "copy", "--arm", "random", "--limit", "20"]) == 0
    out = capsys.readouterr().out
    assert out.count("| copy |") == 1 and "bayes" not in out
    assert (finished / "attacks.md").read_text() == out, "what an earlier attack left is replaced"


def which_of_two(finished):
    """The run's data again, and of each text which of two words stands in it."""
    shared = Path(json.loads((finished / "nodes" / "0" / "node.json").read_text())["vocabulary"]).parent
    study = load(finished / "experiment.toml")
    ready = text_prepared(study, shared)
    about = {
        joined(text): part.classes[label]
        for part in (ready.public, ready.held.train)
        for text, label in zip(part.texts, part.labels, strict=True)
    }
    return ready, about


def test_an_attribute_of_sanitized_texts(finished, monkeypatch):
    """Which of two words stands in a review: known without noise, a coin from random words, between them in between."""
    ready, about = which_of_two(finished)
    monkeypatch.setattr(word_attributes, "prepared", lambda run: ready)
    monkeypatch.setattr(attributes, "column", lambda study, held, name: about)
    accuracy = {"no noise": 0.8, "santext ε=6": 0.6, "random": 0.5}
    lines = [{"name": name, "accuracy": a, "reference": name == "no noise"} for name, a in accuracy.items()]
    (finished / "results.json").write_text(json.dumps({"arms": lines}))
    try:
        found = run(Attack(finished, tuple(word_attributes.ATTACKS), attributes=("which",)))
    finally:
        (finished / "results.json").unlink()
    entries = {(e["arm"], e["attack"].rsplit("-", 1)[1]): e for e in found["entries"]}
    assert len(entries) == len(found["entries"]) == 3 * len(ARMS)
    clear, noisy, random = (entries[arm, "exact"] for arm in ("no noise", "santext ε=6", "random"))
    assert clear["success"] == clear["without_noise"] > 0.8 and clear["relative_gain"] == 0.0
    assert random["success"] < 0.75 and noisy["success"] > random["success"]
    assert noisy["relative_gain"] == pytest.approx(0.75 - noisy["success"] / noisy["without_noise"])
    assert entries["madlib", "exact"]["relative_gain"] is None, "its model has no score here"
    assert clear["relative_gain_error"] == 0.0 < noisy["relative_gain_error"] < 0.3
    assert min(entries["no noise", how]["success"] for how in ("static", "adaptive")) > 0.7
    assert entries["random", "adaptive"]["success"] < 0.75 < entries["santext ε=6", "adaptive"]["success"]
    assert {e["by"].removesuffix(" of texts as written") for e in entries.values()} <= {
        "",
        "words",
        "vectors",
        "sentence encoder",
    }
    for e in entries.values():
        assert e["success"] <= e["bound"] + SIGMAS * max(e["error"], spread(e["bound"]))


def test_an_attribute_of_texts_that_a_language_model_rewrote(tmp_path_factory, monkeypatch):
    """Whoever rewrites public texts in the same way learns what is left of a review's word where ε is large; at
    ε = 0.001 nobody does: five standard errors above the most frequent value, exceeded by chance in 3 of 10 million."""
    finished = run_of(READERS, tmp_path_factory)
    ready, about = which_of_two(finished)
    monkeypatch.setattr(word_attributes, "prepared", lambda run: ready)
    monkeypatch.setattr(attributes, "column", lambda study, held, name: about)
    found = run(Attack(finished, tuple(word_attributes.ATTACKS), attributes=("which",)))
    entries = {(e["arm"], e["attack"].rsplit("-", 1)[1]): e for e in found["entries"]}
    assert set(entries) == {(arm, how) for arm in READERS for how in ("static", "adaptive")} | {("no noise", "exact")}
    assert sum("depends on the whole text" in line for line in found["skipped"]) == 2
    for e in entries.values():
        assert e["without_noise"] > 0.7 and e["success"] <= e["bound"] + SIGMAS * max(e["error"], spread(e["bound"]))
    silent = entries["silent", "adaptive"]
    assert silent["success"] <= silent["baseline"] + SIGMAS * spread(silent["baseline"])
    loud = entries["loud", "adaptive"]
    assert loud["success"] > silent["success"] and loud["success"] > loud["baseline"] + 0.1


def test_the_same_run_gives_the_same_results(finished):
    asked = Attack(finished, tuple(name for name in ATTACKS if "mask" not in name), limit=30)
    first, second = run(asked), run(asked)
    assert first == second and "Attacks: bayes: " in markdown(first)
    assert {e["texts"] for e in first["entries"]} == {30}


def test_mask_inference_reads_the_words_around(tmp_path):
    """On a checkpoint that always says one word, it says that word; else what the model finds most likely."""
    import torch
    from transformers import BertForMaskedLM

    from sottovoce.adversary.estimators.masked_tokens import MaskAttack

    checkpoint = tiny_masked_lm(tmp_path / "model")
    names = ("film", "book", "good", "plots", "zebra", ".")
    vocabulary = Vocabulary(names, np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32))
    sent = np.array([[0, 2, 5, NOTHING], [3, NOTHING, 4, 1]])
    found = MaskAttack(checkpoint, vocabulary).guesses(sent)
    assert (found[sent == NOTHING] == NOTHING).all()
    assert set(found[sent != NOTHING].tolist()) <= {0, 1, 2, 5}, "words of one piece alone are guessed"
    model = BertForMaskedLM.from_pretrained(checkpoint).eval()
    pieces = (checkpoint / "vocab.txt").read_text().split()
    ids = [pieces.index(p) for p in ("[CLS]", "film", "[MASK]", ".", "[SEP]")]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, 2]
    columns = [pieces.index(names[i]) for i in (0, 1, 2, 5)]
    assert found[0, 1] == (0, 1, 2, 5)[int(logits[columns].argmax())]
    model.cls.predictions.bias.data[pieces.index("book")] += 1e4
    model.save_pretrained(checkpoint)
    assert (MaskAttack(checkpoint, vocabulary).guesses(sent)[sent != NOTHING] == 1).all()
    long = np.zeros((1, 80), dtype=np.int64)
    guesses = MaskAttack(checkpoint, vocabulary).guesses(long)[0]
    assert (guesses[:62] == 1).all() and (guesses[62:] == NOTHING).all(), "64 positions, of which two are special"
    with pytest.raises(ValueError, match=r"^masked-lm: no word of the vocabulary is a single piece[^\n]*$"):
        MaskAttack(checkpoint, Vocabulary(("zebra", "yak"), np.eye(2, dtype=np.float32)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--attack", "bayse"], "--attack bayse: there is none of that name; did you mean 'bayes'?"),
        (["--arm", "randon"], "--arm randon: the run has none of that name; did you mean 'random'?"),
        (["--limit", "1"], "--limit 1: at least 2 texts are needed"),
        (["--attack", "mask", "--arm", "random"], "name its folder with --masked-lm"),
        (["--masked-lm", "/nowhere"], "--masked-lm /nowhere: there is no such folder"),
        (["--attack", "copy", "--attack", "inversion"], "--attack inversion: applies to none of the arms"),
    ],
)
def test_bad_options_are_one_line(finished, options, said, capsys):
    assert main(["attack", str(finished), *options]) == 2
    out, err = capsys.readouterr()
    complaint = [line for line in err.splitlines() if line.startswith("sottovoce:")]
    assert out == "" and len(complaint) == 1 and said in complaint[0]
    # which arms a model must be named for follows from the releases; the other refusals come before any is read
    assert ("released texts" in err) == said.startswith("name its folder")


def test_a_folder_that_holds_no_releases_is_one_line(finished, tmp_path, capsys):
    def complaint(folder: Path) -> str:
        assert main(["attack", str(folder)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("sottovoce:") == 1 and err.count("\n") <= 2
        return err

    assert "is no run folder" in complaint(tmp_path / "nothing")
    assert "is no run folder" in complaint(tmp_path)
    (tmp_path / "experiment.toml").write_text((finished / "experiment.toml").read_text(), encoding="utf-8")
    assert "holds no releases" in complaint(tmp_path)
    node = tmp_path / "nodes" / "0"
    node.mkdir(parents=True)
    (node / "node.json").write_text((finished / "nodes" / "0" / "node.json").read_text())
    assert "has fewer than two released texts" in complaint(tmp_path)
    ledger = "ledger-random.sqlite"
    (node / "ledger-no-noise.sqlite").write_bytes((finished / "nodes" / "0" / ledger).read_bytes())
    assert "was not written by arm" in complaint(tmp_path)
    (node / "ledger-no-noise.sqlite").write_bytes(b"no ledger")
    assert "ledger" in complaint(tmp_path)
