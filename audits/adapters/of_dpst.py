"""dpst: `DPST.privatize` with its own choice of triples, and small stand-ins for what needs a GPU and a database.

A text is its triple, or has none. Two triples are of one cluster, which has three public triples; the language model
repeats the triple that was chosen.
"""

import sys
import types
from unittest.mock import MagicMock

from speak import each, speak

for name in (
    "torch",
    "torch.nn",
    "nltk",
    "weaviate",
    "weaviate.classes",
    "weaviate.classes.query",
    "transformers",
    "openie",
    "vllm",
    "sentence_transformers",
    "datasketch",
):
    sys.modules.setdefault(name, MagicMock())
from dpst.core import DPST  # noqa: E402 - after the stand-ins

EPSILON = 1.0
PUBLIC = ["ann | has | flu", "bob | has | cold", "joe | likes | tea"]
#: How near a text's triple is to each public one.
NEAR = {"eve | has | flu": (1.0, 0.0, 0.0), "eve | likes | tea": (0.0, 0.0, 1.0)}
NO_TRIPLE = "flu !"


class Small(DPST):
    """The package's class without its models."""

    def __init__(self):
        self.device, self.centroids, self.cluster_counts = "cpu", None, [len(PUBLIC)]
        self.tokenizer = types.SimpleNamespace(
            encode=lambda text: text.split(), apply_chat_template=lambda prompt, **_: prompt[-1]["content"]
        )
        self.model = types.SimpleNamespace(encode=lambda triples, **_: triples)
        self.llm = types.SimpleNamespace(
            generate=lambda prompts, **_: [
                types.SimpleNamespace(outputs=[types.SimpleNamespace(text=prompt)]) for prompt in prompts
            ]
        )

    def get_triples_ie(self, text):
        return [] if text == NO_TRIPLE else [text]

    def query_db(self, vector, cluster):
        return list(zip(PUBLIC, NEAR[vector], strict=True))


import dpst.core  # noqa: E402

dpst.core.util.semantic_search = lambda query_embeddings, **_: [[{"corpus_id": 0}] for _ in range(1)]
dpst.core.tqdm = lambda items, **_: items
mechanism = Small()
inputs = [*NEAR, NO_TRIPLE] if sys.argv[1] == "without" else list(NEAR)
speak(
    {"epsilon": EPSILON, "inputs": inputs, "releases": "category"}, each(lambda x: mechanism.privatize([x], EPSILON)[0])
)
