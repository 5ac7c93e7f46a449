"""Attacks on sanitized text: as good as theory says they are, never better than it allows, blind where they must be.

Statistical tests allow for 5 standard errors, which an estimate of a true value exceeds with probability below 1e-6, on
fixed seeds.
"""

import json
import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

from client.models.tokens import joined
from mechanisms.vocabulary import NOTHING, Vocabulary
from simulations.experiment import load, to_toml
from sottovoce.adversary.attacks import attributes, scores
from sottovoce.adversary.attacks.run import attack
from sottovoce.adversary.attacks.words import ATTACKS
from sottovoce.adversary.estimators import linkage, tokens
from sottovoce.adversary.estimators.channel import Channel
from sottovoce.cli.main import main
from tests.support.attacked_words import ESTIMATED, EXACT, LENGTH, SIGMAS, SIZE, V, again, law, released, success, text
from tests.support.studies import USERS, LocalGrid, placed, run_arms, use_folder
from tests.support.texts import RANDOM, SANTEXT, TOKENS, VERBATIM, installed, text_prepared, text_study
from tests.support.tiny_models import tiny_masked_lm

# --- the law of a released word


#: One mechanism for each way to a law: words passed through, one table, groups of words.
WAYS = ("identity", "santext+", "custext+", "kept")


@pytest.mark.parametrize("name", WAYS)
def test_the_adversarys_law_is_that_of_the_releases(name):
    mechanism = text(EXACT[name])
    n, table = 4000, law(mechanism)
    x = np.repeat(np.arange(SIZE)[:, None], LENGTH, axis=1)
    drawn = np.concatenate([again(mechanism, x, seed) for seed in range(n // LENGTH)], axis=1)
    for word in range(SIZE):
        seen = np.bincount(drawn[word], minlength=SIZE) / n
        spread = np.sqrt(table[word] * (1 - table[word]) / n)
        # of 14,400 cells each alarms with probability below 1e-11 (Poisson, at its worst mean)
        assert (np.abs(seen - table[word]) <= 7 * spread + 10 / n).all()


@pytest.mark.parametrize("name", ["madlib", "madlib-syntax paper"])
def test_an_estimated_law_is_near_that_of_the_releases(name):
    mechanism = text(ESTIMATED[name])
    channel = Channel(mechanism, seed=9)
    assert not channel.exact and channel.draws == 200
    table = law(mechanism)
    np.testing.assert_allclose(table.sum(axis=1), 1.0)
    x = np.repeat(np.arange(SIZE)[:, None], LENGTH, axis=1)
    drawn = np.concatenate([again(mechanism, x, seed) for seed in range(100)], axis=1)
    seen = np.stack([np.bincount(row, minlength=SIZE) for row in drawn]) / drawn.shape[1]
    apart = np.abs(seen - table[:SIZE]).sum(axis=1) / 2
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


@pytest.mark.parametrize("name", WAYS)
def test_the_best_guess_succeeds_as_often_as_theory_says(name):
    mechanism = text(EXACT[name])
    prior = tokens.unigram(V)
    channel, table = Channel(mechanism), law(mechanism)
    found = tokens.decode(channel, prior[None])
    theory = (prior[:, None] * table).max(axis=0).sum()
    assert found.best[0] == pytest.approx(theory, rel=1e-12) == pytest.approx(found.expected(prior), rel=1e-9)

    x, y = released(mechanism, 3000, prior)
    measured = success(tokens.guessed(y, found.guesses[0]), x, y)
    assert abs(measured.success - theory) <= SIGMAS * measured.error + 1e-12


def test_what_nobody_can_have_written_is_not_guessed():
    mechanism = text({"mechanism": "identity"})
    prior = np.zeros(SIZE + 1)
    prior[3] = 1.0
    found = tokens.decode(Channel(mechanism), prior[None])
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


def test_releases_of_one_text_add_their_losses():
    """The bound of n releases is that of one release of n times the ε."""
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


def pairs(spec, n, seed=1):
    mechanism, prior = text(spec), tokens.unigram(V)
    x, first = released(mechanism, n, prior, seed)
    return linkage.scores(Channel(mechanism), prior, first, again(mechanism, x, seed, "again")), mechanism, first, x


def test_releases_without_noise_are_linked_and_noise_alone_is_not():
    evidence, _, first, _ = pairs({"mechanism": "identity"}, 200)
    assert len(np.unique(first, axis=0)) == 200
    assert scores.matched(evidence).success == 1.0 and scores.area_of_pairs(evidence).success == 1.0
    evidence, mechanism, _, _ = pairs({"mechanism": "random"}, 200)
    found, area = scores.matched(evidence), scores.area_of_pairs(evidence)
    assert abs(found.success - 1 / 200) < 1e-9 or abs(found.success - 1 / 200) <= SIGMAS * found.error
    assert abs(area.success - 0.5) <= SIGMAS * area.error + 1e-9
    assert linkage.bound(mechanism, 200) == 1.0, "a length that is kept may tell everything"


@pytest.mark.parametrize("name", ["santext", "custext+"])
def test_evidence_gathered_group_by_group_is_that_of_the_whole_table(name):
    mechanism, prior = text(EXACT[name]), tokens.unigram(V, unknown=0.1)
    table = law(mechanism)
    joint, q = np.einsum("x,xy,xz->yz", prior, table, table), prior @ table
    rng = np.random.default_rng(8)
    a, b = rng.integers(SIZE, size=(3, LENGTH)), rng.integers(SIZE, size=(4, LENGTH))
    a[0, 4:], b[1, 7:] = NOTHING, NOTHING
    evidence = linkage.scores(Channel(mechanism), prior, a, b)
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
    allowed = linkage.bound(one, n)
    assert allowed == pytest.approx(1 / (1 + (n - 1) * math.exp(-2 * one.guarantee.worst_case())))
    prior, rates = tokens.unigram(V), []
    for seed in range(60):
        x = np.random.default_rng(seed).choice(SIZE + 1, size=(n, 1), p=prior)
        evidence = linkage.scores(Channel(one), prior, again(one, x, seed), again(one, x, seed, "again"))
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
    monkeypatch.setattr(attributes, "column", lambda target, name: values)
    monkeypatch.setattr("sottovoce.adversary.estimators.attributes._EPOCHS", 6)


def test_an_attribute_of_sanitized_texts(finished, monkeypatch):
    """Which of two words a review has: known without noise, a coin from random words, between them in between."""
    which_of_two(finished, monkeypatch)
    accuracy = {"no noise": 0.8, "santext ε=6": 0.6, "random": 0.5}
    lines = [{"name": name, "accuracy": a, "reference": name == "no noise"} for name, a in accuracy.items()]
    (finished / "results.json").write_text(json.dumps({"arms": lines}))
    try:
        results = attack(finished, *attributes.ATTACKS, attributes=("which",), arms=tuple(accuracy))
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
    assert {e["attack"] for e in results["entries"]} == {
        "attribute-words-adaptive"
    } and entries.keys() == READERS.keys()
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
    assert (MaskAttack(checkpoint, vocabulary).guesses(sent)[sent != NOTHING] == 1).all()
    long = np.zeros((1, 80), dtype=np.int64)
    guesses = MaskAttack(checkpoint, vocabulary).guesses(long)[0]
    assert (guesses[:62] == 1).all() and (guesses[62:] == NOTHING).all(), "64 positions, of which two are special"
    with pytest.raises(ValueError, match=r"^masked-lm: no word of the vocabulary is a single piece[^\n]*$"):
        MaskAttack(checkpoint, Vocabulary(("zebra", "yak"), np.eye(2, dtype=np.float32)))


def test_bad_options_are_one_line(finished, capsys):
    for options, complaint in (
        (["--attack", "bayse"], "--attack bayse: there is none of that name; did you mean 'bayes'?"),
        (["--arm", "randon"], "--arm randon: the run has none of that name; did you mean 'random'?"),
        (["--limit", "1"], "--limit 1: at least 2 texts are needed"),
        (["--attack", "mask", "--arm", "random"], "name its folder with --masked-lm"),
        (["--masked-lm", "/nowhere"], "--masked-lm /nowhere: there is no such folder"),
        (["--attack", "copy", "--attack", "inversion"], "--attack inversion: applies to none of the arms"),
    ):
        assert main(["attack", str(finished), *options]) == 2
        out, err = capsys.readouterr()
        complaints = [line for line in err.splitlines() if line.startswith("sottovoce:")]
        assert out == "" and len(complaints) == 1 and complaint in complaints[0]


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
