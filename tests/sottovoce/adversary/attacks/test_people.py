"""The comparison of releases of the same people's texts, on a few made-up authors and, where they are, on SynthPAI."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from mechanisms.vocabulary import Vocabulary
from simulations.errors import UserError
from sottovoce.adversary.attacks import people
from sottovoce.cli.main import main
from tests.support.paths import DATA

RED, BLUE = ("red", "rose", "ruby", "fire"), ("blue", "sky", "sea", "ice")
GOOD, BAD = ("good", "fine", "great"), ("bad", "awful", "dull")
WORDS = (*RED, *BLUE, *GOOD, *BAD, "it", "is", ".", "really")
SYNTHPAI = DATA / "synthpai"


class Counts:
    """Encoder whose embedding of a text counts its words."""

    def embed(self, texts):
        rows = [[text.lower().split().count(word) for word in WORDS] for text in texts]
        noise = np.random.default_rng(len(texts)).normal(size=(len(texts), len(WORDS)))
        return np.array(rows, dtype=np.float32) + 0.01 * noise.astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 authors of six comments; the words of half of them are red."""
    place = tmp_path_factory.mktemp("people")
    rng = np.random.default_rng(1)
    profiles, comments, redacted, guesses = [], [], [], []
    for i in range(40):
        mine, sex = (RED, "female") if i % 2 else (BLUE, "male")
        income = "very high" if i % 4 == 0 else "low"
        profiles.append(f"p{i}\t{20 + i}\t{sex}\tOslo, Norway\tMasters in X\t{income}\tsingle")
        for j in range(6):
            said = [*rng.choice(mine, 2), "it", "is", str(rng.choice(GOOD if j % 3 else BAD)), ".", f"n{j}", f"m{j}"]
            comments.append(f"p{i}\t{' '.join(said)}")
            if j != 3:  # one of each author is missing
                redacted.append(f"p{i}\t{' '.join(['***', '***', *said[2:]])}")
        guesses.append(f"comments\tp{i}\tsex\t{int(i % 3 > 0)}\t1")
    teacher = [f"{k % 2}\tit is {' '.join(rng.choice(GOOD if k % 2 else BAD, 3))} ." for k in range(300)]
    for name, header, rows in (
        ("profiles", "author\tage\tsex\tcity_country\teducation\tincome_level\trelationship_status", profiles),
        ("comments", "author\tsentence", comments),
        ("comments_redacted", "author\tsentence", redacted),
        ("guesses_gpt4", "text\tauthor\tattribute\tfirst_right\tone_of_three_right", guesses),
        ("teacher", "label\tsentence", teacher),
    ):
        (place / f"{name}.tsv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def results(folder: Path) -> dict:
    found = people.read(folder)
    task = people.sentiment(folder / "teacher.tsv", found.texts, seed=1)
    vocabulary = Vocabulary(WORDS, np.random.default_rng(2).normal(size=(len(WORDS), 4)).astype(np.float32))
    texts = {
        "redaction": {"mechanism": "redaction"},
        "SanText": {"mechanism": "santext", "epsilon": 0.01},
        "DP-MLM": {"mechanism": "dp-mlm", "epsilon": 100.0},
        "Presidio": people.TEXTS["Presidio"],
    }
    study = people.Study(found, task, None, texts, 1, Counts(), vocabulary)
    return people.compare(study)


def test_attributes_are_binned_and_rare_ones_left_out(folder: Path) -> None:
    found = people.read(folder, most=2)
    assert len(found.names) == 40 and len(found.texts) == 80
    assert set(found.attributes["age"]) == {"below 30", "30 to 44", "45 and above"}
    assert set(found.attributes["income_level"]) == {"high", "low"} and set(found.attributes["country"]) == {"Norway"}
    assert people._education({"education": "studying towards a PhD"}) == "studying"
    assert people._education({"education": "High School Diploma"}) == "school"
    assert people._country({"city_country": "Boston, USA"}) == "United States"


def test_redacted_comments_are_found_again(folder: Path) -> None:
    found = people.read(folder)
    assert found.redacted is not None
    pairs = [(text, said) for text, said in zip(found.texts, found.redacted, strict=True) if said]
    same = [said.split()[2:] == text.split()[2:] for text, said in pairs]
    assert len(same) == 200 and all(same)


def test_what_is_planted_is_found_where_it_is_left(results: dict) -> None:
    found = {(e["arm"], e.get("attribute")): e for e in results["entries"]}
    assert found["clear text", "sex"]["success"] > 0.95
    assert found["one vector a user, no noise", "sex"]["success"] > 0.75
    for hidden in ("commercial redaction", "SanText"):
        assert found[hidden, "sex"]["success"] < 0.5 + 5 * math.sqrt(0.25 / 40)
    arms = {arm["name"]: arm for arm in results["arms"]}
    assert arms["clear text"]["use"] > 0.95 and arms["commercial redaction"]["use"] > 0.95 > arms["SanText"]["use"]
    assert arms["redaction"]["user_epsilon"] == math.inf and 0 < arms["one vector a user, ε = 6"]["user_epsilon"] < 6.1
    assert found["one vector a user, ε = 6", "sex"]["bound"] < 1
    (published,) = results["published"]
    assert published["authors"] == 40 and published["gpt4"] == pytest.approx(26 / 40) and published["ours"] > 0.95
    left = "\n".join(results["skipped"])
    assert "DP-MLM: needs a masked language model" in left and "country" in left
    assert "Presidio" in left or ("Presidio", "sex") in found


def test_what_is_written(results: dict) -> None:
    said = people.summary(results)
    assert "| redaction | no guarantee (∞) |" in said and "GPT-4" in said and "Left out: " in said
    assert len(people.figure(results).axes[0].lines) > 5


def test_missing_files_and_columns_are_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["people", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "profiles.tsv: is missing" in capsys.readouterr().err and not (tmp_path / "out").exists()
    with pytest.raises(UserError, match=r"profiles\.tsv: is missing"):
        people.read(tmp_path)
    with pytest.raises(UserError, match="lacks one of the columns label, sentence"):
        people.sentiment(folder / "comments.tsv", ["a"], 1)


@pytest.mark.skipif(not SYNTHPAI.is_dir(), reason="SynthPAI is not in shared/data")
def test_synthpai_is_read() -> None:
    found = people.read(SYNTHPAI)
    assert len(found.names) == 300 and len(found.texts) == 7822 and found.redacted is not None
    assert sum(said is None for said in found.redacted) < 100
    assert {name: len({*values}) for name, values in found.attributes.items()}["income_level"] == 3
