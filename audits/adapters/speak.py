"""How an adapter answers the auditor: its claim on the first line, then draws for each line that it is sent.

What a package prints goes to standard error, so that standard output holds answers alone.
"""

import contextlib
import json
import sys
from pathlib import Path


def speak(claim, draws):
    """claim: a dict (docs/how-to/audit-package.md). draws(x, n): n draws at the input x, as JSON can hold them."""
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        print(json.dumps(claim), file=answers, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            print(json.dumps({"draws": draws(asked["input"], asked["draws"])}), file=answers, flush=True)


def each(draw):
    """Of a function that draws once, one that draws n times."""
    return lambda x, n: [draw(x) for _ in range(n)]


def rounded(draws, bits=10):
    """The same numbers on a grid of 2^-bits: what is done to a draw cannot make it less private."""
    return lambda x, n: [round(y * 2**bits) / 2**bits for y in draws(x, n)]


#: A number between 0 and 1, and a value of four.
NUMBER = {"inputs": {"low": 0.0, "high": 1.0}, "releases": "number"}
LABEL = {"inputs": [0, 1, 2, 3], "releases": "category"}
#: Counts of up to 20, of which a person's record changes one by 1.
COUNT = {"inputs": {"low": 0, "high": 20, "whole": True}, "metric": "euclidean", "releases": "number"}


def words(count=20, size=3):
    """Made-up words and vectors for mechanisms that replace one by another: {word: vector}, always the same."""
    import random

    rng = random.Random(6)
    return {f"word{i}": [rng.gauss(0, 1) for _ in range(size)] for i in range(count)}


def of_words(vocabulary):
    """The part of a claim that words have whose metric is the distance of their vectors."""
    return {
        "inputs": list(vocabulary),
        "places": list(vocabulary.values()),
        "metric": "euclidean",
        "releases": "category",
    }


def nltk_data(folder):
    """Write the NLTK files that rewriters read into a folder, and return the path for NLTK_DATA."""
    data = Path(folder) / "nltk_data"
    stop, punkt = data / "corpora" / "stopwords", data / "tokenizers" / "punkt_tab" / "english"
    for made in (stop, punkt):
        made.mkdir(parents=True)
    (stop / "english").write_text("the\n")
    for name in ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt"):
        (punkt / name).write_text("")
    return str(data)
