"""Effect of word mechanisms on single words, at given ε or at equal deniability (`sottovoce deniability`).

The analyses are those of Arnold et al. 2023, section 4: parts of speech before and after (linguistic), distance of the
substitutes (geometric), N_x and S_x (privacy). S*_y is from Yue et al. 2021. Each of a sample of public words is drawn
many times. The figures are no guarantee; the guarantee of each mechanism is shown beside them.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from client.models.vocabulary import load
from mechanisms import catalogue
from mechanisms.mechanism_text import read_mechanism
from mechanisms.streams import SimulationStreams
from mechanisms.vocabulary import TAGS, Vocabulary
from mechanisms.words import deniability
from simulations.artifacts.vocabulary import vocabulary_folder
from simulations.errors import UserError
from simulations.output.jsonable import json_ready
from simulations.output.markdown import table as markdown_table
from simulations.output.numbers import epsilon as shown

log = logging.getLogger(__name__)


#: Number of words that are drawn at once.
_WORDS = 500
#: Quantiles in the tables.
QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Study:
    """Mechanisms, as NAME[:key=value,...], and how they are measured.

    Attributes:
        mechanisms: Mechanisms.
        epsilons: ε at which each mechanism is measured, if it has one and `target` is None.
        words: Vocabulary, a file or a checkpoint.
        sample: Number of sampled words.
        draws: Number of draws of each word.
        quantile: Quantile of N_x over words that `target` bounds.
        target: Bound on this quantile. Each mechanism is measured at the largest ε that keeps it.
        seed: Seed of sample and draws.
    """

    mechanisms: tuple[str, ...]
    epsilons: tuple[float, ...] = (5.0, 10.0, 25.0)
    words: str = "minilm"
    sample: int = 1000
    draws: int = 100
    quantile: float = 0.5
    target: float | None = None
    seed: int = 1


def check(study: Study) -> None:
    """Check the mechanisms, and that no number is not-a-number, which is in no range and so outside of none.

    Raises:
        UserError: A number is none, or a mechanism is not NAME[:key=value,...] or draws no single words.
    """
    numbers: dict[str, Any] = {"epsilon": study.epsilons, "quantile": study.quantile, "target": study.target or 0.0}
    for option, values in numbers.items():
        if np.isnan(values).any():
            raise UserError(f"--{option}: must be a number, got nan")
    for text in study.mechanisms:
        if getattr(catalogue.admit(read_mechanism(text)["mechanism"]), "reads", ()):
            raise UserError(
                f"--mechanism {text}: a language model reads the whole text for each draw, so a word alone has no "
                "deniability; compare arms of an experiment"
            )


def load_words(source: str) -> Vocabulary:
    """Return the tagged vocabulary of a file or a checkpoint, cached."""
    return load(vocabulary_folder(source, tags=True))


# --- measuring


def run(study: Study, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return all figures as a dict, JSON-ready except for arrays. The vocabulary must have tags."""
    rng = np.random.default_rng(study.seed)
    inputs = np.sort(rng.permutation(len(vocabulary))[: study.sample]).astype(np.int64)
    log.info(f"{len(vocabulary):,} words, {len(inputs):,} of them drawn {study.draws} times each")
    runs: list[dict[str, Any]] = []
    for text in study.mechanisms:
        for mechanism in _settings(study, text, vocabulary, inputs):
            measured = _measure(study, text, mechanism, inputs, _draw(study, mechanism, inputs))
            runs.append(measured)
            log.info(f"{label(measured)}: N_x {measured['stays']['mean']:.3f}, tag kept {measured['tag_kept']:.3f}")
    return {
        "words": study.words,
        "vocabulary": vocabulary.identity,
        "vocabulary_size": len(vocabulary),
        "vocabulary_tags": _counts(np.asarray(vocabulary.tags)),
        "sample": len(inputs),
        "sample_tags": _counts(np.asarray(vocabulary.tags)[inputs]),
        "draws": study.draws,
        "seed": study.seed,
        "quantile": study.quantile,
        "target": study.target,
        "runs": runs,
    }


def _settings(study: Study, text: str, vocabulary: Vocabulary, inputs: np.ndarray) -> list[Any]:
    """Return the word mechanisms to measure: at each ε, at the calibrated ε, or once if there is no ε."""
    spec = read_mechanism(text)
    takes = "epsilon" in catalogue.admit(spec["mechanism"]).__dataclass_fields__

    def build(epsilon: float | None) -> Any:
        options = {"epsilon": epsilon} if takes and "epsilon" not in spec else {}
        return catalogue.build(options | spec, channel="text", vocabulary=vocabulary).word

    if not takes or "epsilon" in spec:
        return [build(None)]
    if study.target is None:
        return [build(epsilon) for epsilon in study.epsilons]
    log.info(f"{text}: looking for the ε of N_x = {study.target:g} at quantile {study.quantile:g}")
    return [build(_calibrated(study, build, inputs, study.target))]


def _calibrated(study: Study, build: Callable[[float], Any], inputs: np.ndarray, target: float) -> float:
    def level(epsilon: float) -> float:
        shares = deniability.stays(build(epsilon), inputs, draws=study.draws, rng=lambda: _streams(study, inputs))
        return float(np.quantile(shares, study.quantile))

    # The draws of paper modes may be out of order by a little; a figure that falls by more has no ε of its own.
    return deniability.calibrate(level, target, low=1e-2, high=1000.0, relative=3e-3, slack=2 / study.draws)


def _streams(study: Study, inputs: np.ndarray) -> Any:
    """Return the same uniforms for a word under every mechanism, so that mechanisms share their noise."""
    streams = SimulationStreams(study.seed)
    return streams.rows(inputs, np.zeros(len(inputs), np.int64), stage="deniability", channel="text")


def _draw(study: Study, mechanism: Any, inputs: np.ndarray) -> np.ndarray:
    parts = []
    for at in range(0, len(inputs), _WORDS):
        part = inputs[at : at + _WORDS]
        parts.append(deniability.draw(mechanism, part, draws=study.draws, rng=_streams(study, part)))
        if at + _WORDS < len(inputs):
            log.info(f"{mechanism.name}: {at + len(part):,} of {len(inputs):,} words")
    return np.concatenate(parts)


def _measure(study: Study, text: str, mechanism: Any, inputs: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
    vocabulary = mechanism.vocabulary
    if deniability.has_probabilities(mechanism):
        figures = deniability.exact(mechanism, inputs, draws=study.draws)
    else:
        figures = deniability.tallied(mechanism, inputs, outputs)
    changed = outputs != inputs[:, None]
    confusion = confusion_of(vocabulary, inputs, outputs)
    same = np.asarray(vocabulary.tags)[outputs] == np.asarray(vocabulary.tags)[inputs][:, None]
    by_word = same.mean(axis=1)
    rows = confusion.sum(axis=1)
    apart = np.empty(outputs.shape)
    for i, word in enumerate(inputs):
        apart[i] = np.linalg.norm(vocabulary.vectors[outputs[i]] - vocabulary.vectors[word], axis=1)
    guarantee = mechanism.guarantee
    return {
        "mechanism": text,
        "epsilon": getattr(mechanism, "epsilon", None),
        "exact": figures.exact,
        "worst_case": guarantee.worst_case(),
        "exposes": list(guarantee.exposes),
        "stays": _spread(figures.stays),
        "distinct": _spread(figures.distinct),
        "core": _spread(figures.core),
        # over the sampled inputs only
        "origins": _spread(figures.origins),
        "stays_by_word": figures.stays,
        "distinct_by_word": figures.distinct,
        "tag_kept": float(by_word.mean()),
        "tag_kept_se": float(by_word.std() / math.sqrt(len(by_word))),
        "tag_kept_mean_of_tags": float(np.mean(np.diag(confusion)[rows > 0] / rows[rows > 0])),
        "tag_kept_where_substituted": float(same[changed].mean()) if changed.any() else math.nan,
        "confusion": confusion,
        "distance": _spread(apart[changed]),
    }


def confusion_of(vocabulary: Vocabulary, inputs: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return counts (tags before, tags after) of all draws (n, draws) of words (n,)."""
    before = np.repeat(np.asarray(vocabulary.tags)[inputs].astype(np.int64), outputs.shape[1])
    pairs = before * len(TAGS) + np.asarray(vocabulary.tags)[outputs.reshape(-1)]
    return np.bincount(pairs, minlength=len(TAGS) ** 2).reshape(len(TAGS), len(TAGS))


def _spread(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {"mean": math.nan} | {f"q{q:g}": math.nan for q in QUANTILES}
    return {"mean": float(np.mean(values))} | {f"q{q:g}": float(np.quantile(values, q)) for q in QUANTILES}


def _counts(tags: np.ndarray) -> dict[str, int]:
    return {name: int(n) for name, n in zip(TAGS, np.bincount(tags, minlength=len(TAGS)), strict=True) if n}


# --- tables


def label(run_: dict[str, Any]) -> str:
    """Return the name of a run's mechanism with its ε."""
    return run_["mechanism"] if run_["epsilon"] is None else f"{run_['mechanism']}, ε = {run_['epsilon']:.4g}"


def table(results: dict[str, Any]) -> str:
    """Return the table of all runs in Markdown, with its legend."""
    rows = [
        {
            "mechanism": r["mechanism"],
            "ε": shown(r["epsilon"]),
            "N_x mean": f"{r['stays']['mean']:.3f}",
            "N_x median": f"{r['stays']['q0.5']:.3f}",
            "N_x .9": f"{r['stays']['q0.9']:.3f}",
            "S_x mean": f"{r['distinct']['mean']:.1f}",
            "S_x core": f"{r['core']['mean']:,.0f}",
            "S*_y median": f"{r['origins']['q0.5']:.1f}",
            "tag kept": f"{r['tag_kept']:.3f} ± {r['tag_kept_se']:.3f}",
            "by tag": f"{r['tag_kept_mean_of_tags']:.3f}",
            "substituted": f"{r['tag_kept_where_substituted']:.3f}",
            "distance": f"{r['distance']['q0.5']:.2f}",
            "worst case": f"∞ ({', '.join(r['exposes'])})" if r["exposes"] else shown(r["worst_case"]),
        }
        for r in results["runs"]
    ]
    sampled = any(not r["exact"] for r in results["runs"])
    return (
        f"{markdown_table([*rows[0]], [[*row.values()] for row in rows])}\n\n"
        f"{results['sample']:,} of {results['vocabulary_size']:,} words, {results['draws']} draws each. "
        "N_x: how often a word stays. S_x: distinct outputs of these draws; core: outputs that hold .95 of the "
        f"probability{' (of the draws, where there are no closed probabilities)' * sampled}"
        ". S*_y: from how many of the sampled words an output comes. Tag kept: draws with the word's own part "
        "of speech, ± standard error over words; by tag: mean over the parts of speech; substituted: of the "
        "draws that changed the word. Distance: median, of these. Worst case: ε of a token, any two words."
    )


def markdown(results: dict[str, Any]) -> str:
    """Return the table as a page; deniability.json has the confusion of parts of speech."""
    how = "at given ε"
    if results["target"] is not None:
        how = f"at equal deniability: quantile {results['quantile']:g} of N_x is {results['target']:g}"
    return f"# Deniability {how}\n\n{table(results)}\n"


def write(results: dict[str, Any], folder: Path) -> None:
    """Write deniability.json and deniability.md into an existing folder."""
    readable = json.dumps(json_ready(results), ensure_ascii=False, allow_nan=False) + "\n"
    for name, text in (("deniability.json", readable), ("deniability.md", markdown(results))):
        (folder / name).write_text(text, encoding="utf-8")
