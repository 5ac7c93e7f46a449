"""Attacks on sanitized text: as good as theory says they are, never better than it allows, blind where they must be; in
worlds so small that everything can be gone through, as good as exact Bayes.

Statistical tests allow for 5 standard errors, which an estimate of a true value exceeds with probability below 1e-6, on
fixed seeds.
"""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import linprog

from client.models.tokens import joined
from mechanisms.catalogue import build
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import NOTHING, Vocabulary
from simulations.experiment import load, to_toml
from sottovoce.adversary.attacks import attributes as attack_attributes
from sottovoce.adversary.attacks import scores
from sottovoce.adversary.attacks.attributes import Collected, _Attributes
from sottovoce.adversary.attacks.run import attack
from sottovoce.adversary.attacks.words import ATTACKS, Held
from sottovoce.adversary.estimators import attributes, context, membership, tokens
from sottovoce.adversary.estimators.channel import LEAST, Channel, Table
from sottovoce.cli.main import main
from tests.support.studies import USERS, LocalGrid, placed, run_arms, use_folder
from tests.support.texts import RANDOM, SANTEXT, TOKENS, VERBATIM, installed, text_prepared, text_study
from tests.support.tiny_models import tiny_masked_lm

SIZE, LENGTH = 40, 10
SIGMAS = 5.0
#: Every mechanism whose law is known, and how.
EXACT = {
    "identity": {"mechanism": "identity"},
    "random": {"mechanism": "random"},
    "santext": {"mechanism": "santext", "epsilon": 3.0},
    "santext+": {"mechanism": "santext+", "epsilon": 3.0, "w": 0.6, "p": 0.4},
    "custext": {"mechanism": "custext", "epsilon": 4.0, "k": 8},
    "custext+": {"mechanism": "custext+", "epsilon": 2.0, "k": 8},
    "one group": {"mechanism": "custext", "epsilon": 2.0, "k": SIZE},
    "madlib-syntax": {"mechanism": "madlib-syntax", "epsilon": 3.0, "penalty": 0.5},
    "tem": {"mechanism": "tem", "epsilon": 3.0, "gamma": 1.5},
    "kept": {"mechanism": "santext", "epsilon": 1.0, "stop_words": "keep"},
}
ESTIMATED = {
    "madlib": {"mechanism": "madlib", "epsilon": 3.0},
    "mahalanobis": {"mechanism": "mahalanobis", "epsilon": 3.0, "lam": 0.5},
    "madlib-syntax paper": {"mechanism": "madlib-syntax", "epsilon": 3.0, "mode": "paper", "k": 5},
}


#: Words at random places with Zipf's counts; the first ten are stop words, three tags go round.
V = Vocabulary(
    ("the", "a", "of", "and", "to", "in", "is", "it", "was", "not", *(f"word{i}" for i in range(SIZE - 10))),
    np.random.default_rng(4).normal(size=(SIZE, 3)).astype(np.float32),
    (10_000 / np.arange(1, SIZE + 1)).astype(np.int64),
    (np.arange(SIZE) % 3).astype(np.int8),
)


def text(spec, vocabulary=V):
    return build({"tokens": LENGTH, "length": "kept"} | spec, channel="text", vocabulary=vocabulary)


def again(mechanism, x, seed=1, stage="train"):
    people = np.arange(len(x))
    streams = SimulationStreams(seed).rows(people, np.zeros_like(people), stage=stage, channel="text")
    return mechanism.sample(x, rng=streams).astype(np.int64)


def law(mechanism):
    """(V + 1, V) probabilities, one whole table."""
    return np.exp(Channel(mechanism).log_probs(np.arange(len(mechanism.vocabulary) + 1)))


# --- the law of a released word


@pytest.mark.parametrize("name", ["madlib", "madlib-syntax paper"])
def test_an_estimated_law_is_near_that_of_the_releases(name):
    channel = Channel(text(ESTIMATED[name]), seed=9)
    assert not channel.exact and channel.draws == 200
    x, table = np.repeat(np.arange(SIZE)[:, None], LENGTH, axis=1), law(channel.text)[:SIZE]
    np.testing.assert_allclose(table.sum(axis=1), 1.0)
    drawn = np.concatenate([again(channel.text, x, seed) for seed in range(100)], axis=1)
    seen = np.stack([np.bincount(row, minlength=SIZE) for row in drawn]) / drawn.shape[1]
    apart = np.abs(seen - table).sum(axis=1) / 2
    assert apart.mean() < 0.15, "total variation: 200 draws of each word and the noise's density"


def test_no_law_where_a_word_depends_on_the_whole_text():
    with pytest.raises(ValueError, match=r"^dp-mlm: a released word depends on the whole text[^\n]*$"):
        Channel(text({"mechanism": "dp-mlm", "epsilon": 2.0, "low": 0.0, "high": 1.0}))


def test_a_large_vocabulary_is_gone_through_in_blocks():
    """2,100 words do not fit into one block; alone, each word has the same law and the same guesses."""
    rng = np.random.default_rng(0)
    large = Vocabulary(tuple(f"w{i}" for i in range(2100)), rng.normal(size=(2100, 3)).astype(np.float32))
    channel = Channel(text({"mechanism": "santext", "epsilon": 4.0}, large))
    prior = tokens.unigram(large)
    assert len(list(channel.blocks(np.arange(2100)))) > 1
    found = tokens.decode(channel, prior[None])
    joint = prior[:, None] * np.exp(channel.log_probs(np.arange(2101)))
    np.testing.assert_array_equal(found.guesses[0], joint.argmax(axis=0))
    np.testing.assert_allclose(found.best[0], joint.max(axis=0).sum())


# --- the best guess


#: One mechanism for each way to a law: words passed through, one table, groups of words.
WAYS = ("identity", "santext+", "custext+", "kept")


@pytest.mark.parametrize("name", WAYS)
def test_the_best_guess_succeeds_as_often_as_theory_says(name):
    mechanism = text(EXACT[name])
    prior = tokens.unigram(V)
    channel, table = Channel(mechanism), law(mechanism)
    found = tokens.decode(channel, prior[None])
    theory = (prior[:, None] * table).max(axis=0).sum()
    assert found.best[0] == pytest.approx(theory, rel=1e-12) == pytest.approx(found.expected(prior), rel=1e-9)

    x = np.random.default_rng(1).choice(len(prior), size=(3000, LENGTH), p=prior)
    y = again(mechanism, x)
    measured = scores.rate(tokens.guessed(y, found.guesses[0]), x, scores.scored(y, x, SIZE))
    assert abs(measured.success - theory) <= SIGMAS * measured.error + 1e-12


def test_what_nobody_can_have_written_is_not_guessed():
    prior = np.eye(1, SIZE + 1, 3)
    found = tokens.decode(Channel(text({"mechanism": "identity"})), prior)
    assert found.best[0] == 1.0
    assert found.guesses[0].tolist() == list(range(SIZE)), "an output that no input gives is guessed to be itself"
    y = np.array([[3, NOTHING]])
    assert tokens.guessed(y, found.guesses[0]).tolist() == [[3, NOTHING]]


# --- what the theorem allows


def test_no_mechanism_beats_what_its_theorem_allows():
    """Under its own prior and an uneven one; an estimated law is not the mechanism's, and may be 5 % above."""
    uneven = np.append(np.random.default_rng(2).dirichlet(np.full(SIZE, 0.2)), 0.0)
    priors = [tokens.unigram(V), uneven]
    for name, spec in (EXACT | ESTIMATED).items():
        mechanism = text(spec)
        for best, prior in zip(tokens.decode(Channel(mechanism), np.stack(priors)).best, priors, strict=True):
            assert prior.max() - 1e-12 <= tokens.bound(mechanism, prior) <= 1, name
            assert best <= tokens.bound(mechanism, prior) * (1 + (1e-9 if name in EXACT else 0.05)), name

    # the bound of n releases is that of one release of n times the ε
    weak, strong = (text({"mechanism": "santext", "epsilon": e}) for e in (0.4, 2.0))
    frequencies = np.full(SIZE + 1, 1 / (SIZE + 1))
    assert tokens.bound(weak, frequencies, releases=5) == pytest.approx(tokens.bound(strong, frequencies), rel=1e-6)
    assert tokens.bound(weak, frequencies) < tokens.bound(strong, frequencies)


def optimum(f, loss):
    """Return the best success of any mechanism of losses (n, n) on words of frequencies f, by linear programming.
    Outputs are named by the guess at them: P[x, y], success sum f(x)·P[x, x]."""
    n, rows = len(f), []
    for y, x, other in product(range(n), range(n), range(n)):
        if x != other:
            row = np.zeros((n, n))
            row[x, y], row[other, y] = 1, -np.exp(loss[x, other])
            rows.append(row.ravel())
    ones = np.kron(np.eye(n), np.ones(n))
    best = linprog(-np.diag(f).ravel(), A_ub=np.array(rows), b_ub=np.zeros(len(rows)), A_eq=ones, b_eq=np.ones(n))
    return -best.fun


def test_the_bound_of_ldp_is_attained_by_randomized_response_and_by_nothing_better():
    """Against the exact optimum over all mechanisms, a linear programme, and a mechanism that attains it."""
    epsilon = 1.0
    f = np.array([0.35, 0.3, 0.2, 0.1, 0.05])
    n, allowed = len(f), tokens.randomized(f, epsilon)
    attained = []
    for k in range(1, n + 1):
        table = np.full((n, k), 1 / k)
        table[:k] = (1 + (np.exp(epsilon) - 1) * np.eye(k)) / (np.exp(epsilon) + k - 1)
        ratio = table.max(axis=0) / table.min(axis=0)
        assert ratio.max() <= np.exp(epsilon) * (1 + 1e-12)
        attained.append((f[:, None] * table).max(axis=0).sum())
    assert allowed == pytest.approx(max(attained), rel=1e-12)
    best = optimum(f, epsilon * (1 - np.eye(n)))
    assert best == pytest.approx(allowed, rel=1e-7)
    assert allowed <= min(1.0, np.exp(epsilon) * f.max())


def test_the_metric_bound_against_the_exact_optimum():
    """It allows at least what the best of all mechanisms on a line of words can do, and not everything."""
    n, epsilon = 6, 1.0
    f = np.array([0.3, 0.25, 0.2, 0.1, 0.1, 0.05])
    apart = np.abs(np.arange(n)[:, None] - np.arange(n)[None])
    allowed = tokens.metric(f, np.exp(-epsilon * apart) @ f)
    assert optimum(f, epsilon * apart) <= allowed * (1 + 1e-9) < 0.95
    assert tokens.metric(f, f.sum() * np.ones(n)) == pytest.approx(f.max()), "no loss at all: the most frequent"
    assert tokens.metric(f, f) == pytest.approx(1.0), "any loss: everything"


def test_exposures():
    prior = tokens.unigram(V)
    shown = prior[:10].sum()  # stop words
    kept = tokens.bound(text({"mechanism": "random", "stop_words": "keep"}), prior)
    assert kept == pytest.approx(shown + prior[10:].max(), rel=1e-9)
    loud = text({"mechanism": "custext", "epsilon": 50.0, "k": 8})
    quiet = text({"mechanism": "custext", "epsilon": 0.0, "k": 8})
    groups = quiet.word.mapping.group[:SIZE]
    most = sum(prior[:SIZE][groups == g].max() for g in np.unique(groups))
    assert tokens.bound(quiet, prior) == pytest.approx(most, rel=1e-9) and tokens.bound(loud, prior) > 0.999
    antonyms = {"mode": "paper", "antonyms": (("it", "not"),)}
    filtered = text({"mechanism": "dp-mlm", "epsilon": 1.0, "low": 0.0, "high": 1.0} | antonyms)
    assert tokens.bound(filtered, prior) == 1.0


# --- linkage


@pytest.mark.parametrize("name", ["santext", "custext+"])
def test_evidence_gathered_group_by_group_is_that_of_the_whole_table(name):
    mechanism, prior = text(EXACT[name]), tokens.unigram(V, unknown=0.1)
    table = law(mechanism)
    joint, q = np.einsum("x,xy,xz->yz", prior, table, table), prior @ table
    rng = np.random.default_rng(8)
    a, b = rng.integers(SIZE, size=(3, LENGTH)), rng.integers(SIZE, size=(4, LENGTH))
    a[0, 4:], b[1, 7:] = NOTHING, NOTHING
    evidence = tokens.link_evidence(Channel(mechanism), prior, a, b)
    for i, j in product(range(3), range(4)):
        both = (a[i] != NOTHING) & (b[j] != NOTHING)
        y, z = a[i][both], b[j][both]
        least = np.maximum(joint[y, z], 1e-300)
        expected = (np.log(least) - np.log(np.maximum(q[y], 1e-300)) - np.log(np.maximum(q[z], 1e-300))).sum()
        expected += math.log(LENGTH + 1) if (a[i] != NOTHING).sum() == (b[j] != NOTHING).sum() else math.log(1e-300)
        assert evidence[i, j] == pytest.approx(expected)


def test_what_a_texts_theorem_allows_of_linkage():
    """Two texts of one word, ε of 0.5 in all: matching by any evidence stays below the bound; ties are shared."""
    one = text({"mechanism": "custext", "epsilon": 0.5, "k": SIZE, "tokens": 1, "length": 0.0})
    n = 10
    allowed = tokens.link_bound(one, n)
    assert allowed == pytest.approx(1 / (1 + (n - 1) * math.exp(-2 * one.guarantee.worst_case())))
    assert tokens.link_bound(text({"mechanism": "random"}), n) == 1.0, "a length that is kept may tell everything"
    prior, rates = tokens.unigram(V), []
    for seed in range(60):
        x = np.random.default_rng(seed).choice(SIZE + 1, size=(n, 1), p=prior)
        evidence = tokens.link_evidence(Channel(one), prior, again(one, x, seed), again(one, x, seed, "again"))
        rates.append(scores.matched(evidence).success)
    assert np.mean(rates) <= allowed + SIGMAS * np.std(rates) / math.sqrt(len(rates))
    assert scores.matched(np.zeros((4, 4))).success == 0.25 and scores.area_of_pairs(np.zeros((4, 4))).success == 0.5


# --- a run under attack, by the command


ARMS = {
    "no noise": {"reference": True, "text": VERBATIM},
    "santext ε=6": {"text": SANTEXT},
    "random": {"text": RANDOM},
    "madlib": {"text": {"mechanism": "madlib", "epsilon": 6.0, "tokens": TOKENS}},
}


#: Of mechanisms that read the whole text.
READERS = {
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
    named = ({"name": name, **values} for name, values in arms.items())
    study = text_study(shared, *named, training={"epochs": 1}, text={"masked-lm": "bundled"})
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
        for name in ("bound", "best", "expected"):
            slack = 0 if e[name] is None else SIGMAS * max(e["error"], spread(e[name])) + 1e-9
            assert e[name] is None or e["success"] <= e[name] + slack
            assert e[name] is None or name != "expected" or e["success"] >= e[name] - slack
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


def which_of_two(finished, monkeypatch):
    """Give the attacks the run's data again, and of each text which of two words it has, learned in a few epochs."""
    shared = Path(json.loads((finished / "nodes" / "0" / "node.json").read_text())["vocabulary"]).parent
    ready = text_prepared(load(finished / "experiment.toml"), shared)
    values = {
        joined(text): part.classes[label]
        for part in (ready.public, ready.held.train)
        for text, label in zip(part.texts, part.labels, strict=True)
    }
    monkeypatch.setattr("sottovoce.adversary.attacks.target.prepared", lambda run: ready)
    monkeypatch.setattr(attack_attributes, "column", lambda target, name: values)
    monkeypatch.setattr("sottovoce.adversary.estimators.attributes._EPOCHS", 6)


def test_an_attribute_of_sanitized_texts(finished, monkeypatch):
    """Which of two words a review has: known without noise, a coin from random words, between them in between."""
    which_of_two(finished, monkeypatch)
    accuracy = {"no noise": 0.8, "santext ε=6": 0.6, "random": 0.5}
    lines = [{"name": name, "accuracy": a, "reference": name == "no noise"} for name, a in accuracy.items()]
    (finished / "results.json").write_text(json.dumps({"arms": lines}))
    try:
        results = attack(finished, *attack_attributes.ATTACKS, attributes=("which",), arms=tuple(accuracy))
    finally:
        (finished / "results.json").unlink()
    entries = {(e["arm"], e["attack"].rsplit("-", 1)[1]): e for e in results["entries"]}
    assert len(entries) == len(results["entries"]) == 3 * len(accuracy)
    clear, noisy, random = (entries[arm, "exact"] for arm in accuracy)
    assert clear["success"] == clear["without_noise"] > 0.8 and clear["relative_gain"] == 0.0
    assert random["success"] < 0.75 and noisy["success"] > random["success"]
    assert noisy["relative_gain"] == pytest.approx(0.75 - noisy["success"] / noisy["without_noise"])
    assert clear["relative_gain_error"] == 0.0 < noisy["relative_gain_error"] < 0.3
    assert min(entries["no noise", how]["success"] for how in ("static", "adaptive")) > 0.7
    assert entries["random", "adaptive"]["success"] < 0.75 < entries["santext ε=6", "adaptive"]["success"]
    for e in entries.values():
        assert e["success"] <= e["bound"] + SIGMAS * max(e["error"], spread(e["bound"]))


def test_an_attribute_of_texts_that_a_language_model_rewrote(tmp_path_factory, monkeypatch):
    """An adversary who rewrites public texts in the same way learns what is left of a review's word where ε is large;
    at ε = 0.001 nobody does: five standard errors above the most frequent value."""
    finished = run_of(READERS, tmp_path_factory)
    which_of_two(finished, monkeypatch)
    results = attack(finished, "attribute-words-adaptive", "attribute-words-exact", attributes=("which",))
    entries = {e["arm"]: e for e in results["entries"]}
    assert [e["attack"] for e in results["entries"]] == ["attribute-words-adaptive"] * len(READERS)
    assert sum("depends on the whole text" in line for line in results["skipped"]) == 2
    silent, loud = entries["silent"], entries["loud"]
    assert silent["success"] <= silent["baseline"] + SIGMAS * spread(silent["baseline"])
    assert loud["success"] > silent["success"] and loud["success"] > loud["baseline"] + 0.1


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
    attack = MaskAttack(checkpoint, vocabulary)
    assert (attack.guesses(sent)[sent != NOTHING] == 1).all()
    guesses = attack.guesses(np.zeros((1, 80), dtype=np.int64))[0]
    assert (guesses[:62] == 1).all() and (guesses[62:] == NOTHING).all(), "64 positions, of which two are special"
    with pytest.raises(ValueError, match=r"^masked-lm: no word of the vocabulary is a single piece[^\n]*$"):
        MaskAttack(checkpoint, Vocabulary(("zebra", "yak"), np.eye(2, dtype=np.float32)))


def test_bad_options_and_a_folder_that_holds_no_releases_are_one_line(finished, tmp_path, capsys):
    def complaint(*options) -> str:
        assert main(["attack", *map(str, options)]) == 2
        out, err = capsys.readouterr()
        complaints = [line for line in err.splitlines() if line.startswith("sottovoce:")]
        assert out == "" and len(complaints) == 1
        return complaints[0]

    for options, said in (
        (["--attack", "bayse"], "--attack bayse: there is none of that name; did you mean 'bayes'?"),
        (["--arm", "randon"], "--arm randon: the run has none of that name; did you mean 'random'?"),
        (["--limit", "1"], "--limit 1: at least 2 texts are needed"),
        (["--attack", "mask", "--arm", "random"], "name its folder with --masked-lm"),
        (["--masked-lm", "/nowhere"], "--masked-lm /nowhere: there is no such folder"),
        (["--attack", "copy", "--attack", "inversion"], "--attack inversion: applies to none of the arms"),
    ):
        assert said in complaint(finished, *options)
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


# --- worlds so small that everything can be gone through

#: Four words at the corners of a square, texts of two of them.
SQUARE = Vocabulary(
    ("a", "b", "c", "d"), np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32), np.array([4, 3, 2, 1])
)
PAIRS = np.array(list(product(range(4), repeat=2)))
#: Frequencies of the words, as the first of a text.
OPENS = np.array([0.4, 0.3, 0.2, 0.1])


def square(epsilon: float, **more: object):
    spec = {"mechanism": "santext", "epsilon": epsilon, "tokens": 2, "length": "kept"} | more
    return build(spec, channel="text", vocabulary=SQUARE)


def exactly(mechanism) -> np.ndarray:
    """(16, 16) Pr[released pair | pair], word by word."""
    one = law(mechanism)[:4]
    return np.einsum("ac,bd->abcd", one, one).reshape(16, 16)


# --- how likely a release is


@pytest.mark.parametrize(
    "spec",
    [
        {"mechanism": "identity"},
        {"mechanism": "custext", "epsilon": 2.0, "k": 8, "stop_words": "keep"},
        {"mechanism": "santext", "epsilon": 3.0, "length": 1.0},
    ],
    ids=lambda spec: spec["mechanism"],
)
def test_a_releases_likelihood_is_the_product_over_its_places(spec):
    mechanism = text(spec)
    with np.errstate(divide="ignore"):
        whole = np.maximum(np.log(law(mechanism)), LEAST)
    rng = np.random.default_rng(0)
    x = rng.integers(SIZE + 1, size=(3, LENGTH))
    x[1, 6:] = NOTHING
    y = np.vstack([np.where(x < SIZE, x, NOTHING), rng.integers(SIZE, size=(2, LENGTH))])
    y[3, 6:] = NOTHING
    found = Table.of(Channel(mechanism), x, y).likelihood(x, y)
    for (i, drawn), (j, own) in product(enumerate(y), enumerate(x)):
        end, expected = int((np.flatnonzero(drawn != NOTHING)).max()) + 1, 0.0
        if mechanism.lengths is not None:
            expected += float(mechanism.lengths.log_prob(np.array([end]), np.array([(own != NOTHING).sum()]))[0])
        for place in range(end if mechanism.lengths is not None else LENGTH):
            word, out = own[place], drawn[place]
            if word == NOTHING and mechanism.lengths is not None:
                word = SIZE
            if word == NOTHING or out == NOTHING:
                silent = word == out or (spec["mechanism"] == "identity" and word == SIZE and out == NOTHING)
                expected += 0.0 if silent else LEAST
            else:
                expected += whole[word, out]
        assert found[i, j] == pytest.approx(expected, rel=1e-5, abs=1e-4)


# --- is a known text among the releases?


def test_membership_of_a_text_is_guessed_as_well_as_by_exact_bayes():
    """Two releases, one of them perhaps of the text in question: all 256 pairs of them gone through. Words go together.
    Overlap, which ignores the noise, is not as good."""
    mechanism = square(2.0)
    prior = np.outer(OPENS, OPENS) * (1 + 4 * np.eye(4))
    prior = (prior / prior.sum()).ravel()
    table = exactly(mechanism)
    public = np.repeat(PAIRS, np.round(1000 * prior).astype(int), axis=0)
    candidate = np.array([[1, 2]])
    stranger = prior @ table
    own = table[6]
    without = np.outer(stranger, stranger)
    among = (np.outer(own, stranger) + np.outer(stranger, own)) / 2
    best = (1 + np.abs(among - without).sum() / 2) / 2
    rows = Table.of(Channel(mechanism), PAIRS, PAIRS)
    both = [np.stack([PAIRS[a], PAIRS[b]]) for a, b in product(range(16), repeat=2)]

    def told(evidence: np.ndarray) -> float:
        """The best balanced accuracy of any threshold."""
        return max(
            (among.ravel()[evidence >= cut].sum() + without.ravel()[evidence < cut].sum()) / 2
            for cut in np.unique(evidence)
        )

    by_law = np.array([membership.text_evidence(rows, pair, candidate, public)[0] for pair in both])
    by_overlap = np.array([membership.overlap(pair, candidate, 4)[0] for pair in both])
    assert best - 0.01 < told(np.round(by_law, 9)) <= best + 1e-12
    assert told(np.round(by_overlap, 9)) < best - 0.01


FOLLOWS = 0.05 + 0.8 * np.roll(np.eye(4), 1, axis=1)


def chained(n: int, length: int, seed: int) -> np.ndarray:
    """(n, length) texts of that chain."""
    rng = np.random.default_rng(seed)
    x = np.empty((n, length), dtype=np.int64)
    x[:, 0] = rng.choice(4, size=n, p=OPENS)
    for i in range(1, length):
        x[:, i] = (rng.random(n)[:, None] > np.cumsum(FOLLOWS, axis=1)[x[:, i - 1]]).sum(axis=1)
    return x


def test_words_are_guessed_from_their_text_as_well_as_exact_bayes_guesses_them():
    """All texts of three words and all releases gone through, 64 each, with a chain learned on 20,000 texts. A guess
    from single words, even of the true frequencies in each place, is not as good."""
    mechanism = square(1.0, tokens=3)
    one, all_texts = law(mechanism)[:4], np.array(list(product(range(4), repeat=3)))
    first, second, third = all_texts.T
    prior = OPENS[first] * FOLLOWS[first, second] * FOLLOWS[second, third]
    joint = prior[:, None] * np.prod([one[all_texts[:, i]][:, all_texts[:, i]] for i in range(3)], axis=0)
    chain = context.Chain.fitted(chained(20_000, 3, seed=1), np.append(np.full(4, 0.25), 0.0))
    guesses = context.guessed(chain, Table.of(Channel(mechanism), all_texts, all_texts), all_texts)
    single = tokens.decode(Channel(mechanism), np.append(chain.share, 0.0)[None]).guesses[0][all_texts]
    best = right = alone = 0.0
    for i in range(3):
        of_word = np.stack([joint[all_texts[:, i] == w].sum(axis=0) for w in range(4)])
        best += of_word.max(axis=0).sum() / 3
        right += of_word[guesses[:, i], np.arange(64)].sum() / 3
        alone += of_word[single[:, i], np.arange(64)].sum() / 3
    assert best - 0.01 < right <= best + 1e-12
    assert alone < best - 0.03


def test_a_chain_adds_to_one_and_knows_what_it_has_not_seen():
    texts = np.array([[0, 1, NOTHING], [0, 2, 1]])
    chain = context.Chain.fitted(texts, np.array([0.25, 0.25, 0.25, 0.25, 0.0]))
    assert chain.states.tolist() == [0, 1, 2, 3], "the unknown word may not stand anywhere"
    np.testing.assert_allclose(chain.forward(np.eye(4)).sum(axis=1), 1.0)
    np.testing.assert_allclose(chain.backward(np.eye(4)).T, chain.forward(np.eye(4)))
    assert chain.first.sum() == pytest.approx(1.0) and chain.share[3] > 0
    # of 0: followed once by 1 and once by 2; half is left for all words alike
    np.testing.assert_allclose(chain.forward(np.eye(4)[:1])[0], np.array([0, 0.25, 0.25, 0]) + 0.5 * chain.share)


def test_what_users_wrote_is_no_part_of_what_guesses_an_attribute():
    """The same releases, of texts in words that no public text holds, or of others: the same law, the same guesses."""
    mechanism = square(1.0)
    public, values = np.array([[0, 0]] * 30 + [[0, 1]] * 3), np.repeat([0, 1], [30, 3])
    found = Collected(("x", "y"), np.arange(33), values, np.arange(16), np.zeros(16, np.int64))

    def guessed(truth):
        target = SimpleNamespace(seed=1)
        held = Held("train", PAIRS, truth, [""] * 16, np.arange(16), np.zeros(16, np.int64))
        attacked = _Attributes(target, mechanism, held, None)
        vars(attacked)["_public"] = public
        _, exact, plain = attacked._exact(found)
        return attacked._table.inputs.tolist(), exact.tolist(), plain.tolist()

    known, of_other_words = guessed(np.zeros((16, 2), np.int64)), guessed(np.full((16, 2), 3))
    assert known[0] == of_other_words[0] == [0, 1, 4] and known[1] == of_other_words[1]
    assert known[2] == [0] * 16


def lengths_say_it(epsilon: float, length: float | str):
    """Texts of one to three words, of which one value writes long ones: (mechanism, all texts, Pr[text | value])."""
    mechanism = square(epsilon, tokens=3, length=length)
    texts = [list(words) + [NOTHING] * (3 - m) for m in (1, 2, 3) for words in product(range(4), repeat=m)]
    words, long = np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]]), np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])
    written = [[w for w in row if w != NOTHING] for row in texts]
    of_texts = [[long[a, len(row) - 1] * np.prod(words[a, row]) for row in written] for a in (0, 1)]
    return mechanism, np.array(texts), np.array(of_texts)


@pytest.mark.parametrize("length", ["kept", 0.5])
def test_how_long_a_text_is_tells_of_its_attribute_too(length):
    """All 84 texts and 85 releases, one of them empty, gone through: as good as exact Bayes, with what fills a text up
    among it. Words alone, place by place, are not."""
    mechanism, texts, of_texts = lengths_say_it(1.0, length)
    releases = np.vstack([texts, np.full((1, 3), NOTHING)])
    table = Table.of(Channel(mechanism), texts, releases)
    likelihood = np.exp(table.likelihood(texts, releases).astype(np.float64)).T
    np.testing.assert_allclose(likelihood.sum(axis=1), 1.0, atol=1e-5)
    joint = 0.5 * of_texts @ likelihood
    times = np.round(20_000 * of_texts).astype(int)
    public = np.concatenate([np.repeat(texts, row, axis=0) for row in times])
    values = np.repeat([0, 1], times.sum(axis=1))
    guesses = attributes.through_channel(table, public, values, 2, releases)
    best = joint.max(axis=0).sum()
    assert best - 0.005 < joint[guesses, np.arange(len(releases))].sum() <= best + 1e-12
    one = attributes.by_value(table, public, values, 2)[:, :4] @ law(mechanism)[:4]
    alone = np.stack([one[:, row[row != NOTHING]].prod(axis=1) for row in releases], axis=1).argmax(axis=0)
    assert joint[alone, np.arange(len(releases))].sum() < best - 0.02
    plain = attributes.as_written(table, public, values, 2, texts)
    assert of_texts[plain, np.arange(len(texts))].sum() > of_texts.max(axis=0).sum() - 0.01


def test_the_view_that_counts_is_chosen_on_public_texts_alone():
    """Of a view that says everything and one of noise the first, whatever the attacked texts say."""
    rng = np.random.default_rng(5)
    labels, truth = rng.integers(2, size=300), rng.integers(2, size=400)
    noise = rng.integers(50, size=(1, 300, 5)), rng.integers(50, size=(400, 5))

    def view(name: str, auxiliary: np.ndarray, seen: np.ndarray) -> attributes.View:
        return attributes.View(name, attributes.by_words, auxiliary, seen, auxiliary)

    said = view("says", np.repeat(labels[None, :, None], 5, axis=2) * 7, np.repeat(truth[:, None], 5, axis=1) * 7)
    blind = view("noise", *noise)
    for views in ([said, blind], [blind, said]):
        name, guesses = attributes.most_promising(views, labels, classes=2, seed=1)
        assert name == "says" and (guesses == truth).all()


def two_texts(n: int, seed: int) -> np.ndarray:
    """(n, 2, 3) numbers of words, of no length to all."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, 4, size=(n, 2, 1))
    return np.where(np.arange(3) < ends, rng.integers(0, SIZE, size=(n, 2, 3)), NOTHING)


@pytest.fixture(params=[1.0, "kept"])
def pair(request: pytest.FixtureRequest):
    spec = {"mechanism": "santext", "epsilon": 4.0, "tokens": 3, "sides": 2, "length": request.param}
    return build(spec, channel="text", vocabulary=V)


def test_the_likelihood_of_a_pair_is_that_of_its_two_texts(pair):
    x = two_texts(7, 0)
    y = again(pair, x.reshape(len(x), -1))
    whole = Table.of(Channel(pair), x, y).likelihood(x.reshape(7, 6), y)
    side = Table.of(Channel(pair.side), x, y)
    np.testing.assert_allclose(whole, side.likelihood(x[:, 0], y[:, :3]) + side.likelihood(x[:, 1], y[:, 3:]))


def test_two_releases_of_a_pair_are_linked_by_both_sides(pair):
    x = two_texts(30, 3)
    prior = tokens.unigram(V, unknown=0.1)
    one, other = (again(pair, x.reshape(30, 6), seed) for seed in (1, 2))
    both = tokens.link_evidence(Channel(pair), prior, one, other)
    apart = [tokens.link_evidence(Channel(pair.side), prior, one[:, s], other[:, s]) for s in pair.slices]
    np.testing.assert_allclose(both, sum(apart))
