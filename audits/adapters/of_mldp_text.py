"""mldp-text: `replace_word` among 20 made-up words in three dimensions, without faiss."""

import sys

import numpy as np
from gensim.models import KeyedVectors
from mldp_text import mechanisms
from speak import each, of_words, speak, words

VOCABULARY = words()
EPSILON = float(sys.argv[2])
vectors = KeyedVectors(3)
vectors.add_vectors(list(VOCABULARY), np.array(list(VOCABULARY.values()), dtype=np.float32))
given = {"embedding_matrix": vectors, "dim": 3, "use_faiss": False, "vocab": set(VOCABULARY)}
if sys.argv[1] == "TruncatedGumbel":  # what the package would take from one word, drawn at random
    apart = np.linalg.norm(vectors.vectors[:, None] - vectors.vectors[None], axis=2)
    given |= {"max_inter_dist": float(apart.max()), "min_inter_dist": float(apart[apart > 0].min())}
mechanism = getattr(mechanisms, sys.argv[1])(EPSILON, **given)
speak({"epsilon": EPSILON} | of_words(VOCABULARY), each(lambda x: str(mechanism.replace_word(x))))
