"""dp-diffractor: `rewrite` of one word among 20 made-up ones, whose distance is that of their places in its list.

Words are rewritten by one embedding model, and no stopword is spared. The seed is None, or with "default" the
package's own: each draw is then the first text of a process.
"""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from speak import nltk_data, speak, words

METHOD, EPSILON, DEFAULT = sys.argv[1], float(sys.argv[2]), sys.argv[3:] == ["default"]
VOCABULARY = words(40 if METHOD == "TEM" else 20)
MODEL = "glove-wiki-gigaword-300"  # a name that the package knows; the file is ours


def home(folder):
    """A home folder with the vectors, and with the NLTK files that the package reads."""
    cache = Path(folder) / ".cache" / "diffractor"
    cache.mkdir(parents=True)
    lines = [f"{word} {' '.join(map(str, vector))}\n" for word, vector in VOCABULARY.items()]
    (cache / f"{MODEL}.txt").write_text(f"{len(VOCABULARY)} 3\n{''.join(lines)}")
    os.environ |= {"HOME": folder, "NLTK_DATA": nltk_data(folder)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        home(folder)
        from diffractor.core import Diffractor, DiffractorConfig

        asked = {"method": METHOD, "epsilon": EPSILON, "replace_stopwords": True, "verbose": False}
        config = DiffractorConfig(**asked, **({} if DEFAULT else {"seed": None}))

        with contextlib.redirect_stdout(sys.stderr):
            mechanism = Diffractor(config, [MODEL])

        def first(x):
            """Of a new process, what the first word becomes: the package starts its workers when it is first asked."""
            out, into = os.pipe()
            if not os.fork():
                os.write(into, mechanism.rewrite(x)[0].encode())
                os._exit(0)
            os.close(into)
            with os.fdopen(out) as said:
                word = said.read()
            os.wait()
            return word

        order = mechanism.mgr.lists[0]
        claim = {
            "epsilon": EPSILON,
            "inputs": order,
            "places": [[float(i)] for i in range(len(order))],
            "metric": "euclidean",
            "releases": "category",
        }
        speak(claim, lambda x, n: [first(x) for _ in range(n)] if DEFAULT else mechanism.rewrite([x] * n))
        mechanism.close()
