"""fate-llm: `InferDPTKit.perturb` of one word among 20 made-up ones in 32 dimensions."""

import sys

from fate_llm.algo.inferdpt.utils import InferDPTKit
from speak import each, speak, words

EPSILON = float(sys.argv[1])
VOCABULARY = words(size=32)


class Tokenizer:
    """One token, the word."""

    tokenize = staticmethod(lambda text: [text])
    convert_tokens_to_ids = staticmethod(list)
    decode = staticmethod(" ".join)


def made():
    import numpy as np

    names, vectors = list(VOCABULARY), np.array(list(VOCABULARY.values()))
    return InferDPTKit(*InferDPTKit.make_inferdpt_kit_param(vectors, names), Tokenizer())


kit = made()
speak({"epsilon": EPSILON, "inputs": list(VOCABULARY), "releases": "category"}, each(lambda x: kit.perturb(x, EPSILON)))
