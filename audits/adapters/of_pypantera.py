"""pypantera: `processText` of one word among 20 made-up ones in three dimensions."""

import os
import sys
import tempfile

from speak import of_words, speak, words

VOCABULARY = words()
KIND, EPSILON = sys.argv[1], float(sys.argv[2])


def made():
    from src.EmbeddingPerturbationMechanism.cmp import CMP
    from src.EmbeddingPerturbationMechanism.vickrey import VickreyCMP
    from src.SamplingPerturbationMechanism.custext import CusText
    from src.SamplingPerturbationMechanism.santext import SanText
    from src.SamplingPerturbationMechanism.tem import TEM

    kinds = {"CMP": CMP, "VickreyCMP": VickreyCMP, "CusText": CusText, "SanText": SanText, "TEM": TEM}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "vectors.txt")
        with open(path, "w") as file:
            file.writelines(f"{word} {' '.join(map(str, vector))}\n" for word, vector in VOCABULARY.items())
        asked = {"embPath": path, "epsilon": EPSILON, "t": 0.75, "k": 5, "distance": "euclidean", "beta": 0.001}
        return kinds[KIND](asked)


if __name__ == "__main__":  # the package reads its vectors in processes of its own
    mechanism = made()
    perturbed = hasattr(mechanism, "noisyEmb")

    def draws(x, n):
        texts = [x] * n
        return mechanism.processText(mechanism.noisyEmb(texts) if perturbed else texts).split()

    claim = of_words(VOCABULARY)
    if KIND == "CusText":  # its ε is for any two words
        claim = {"inputs": list(VOCABULARY), "releases": "category"}
    speak({"epsilon": EPSILON} | claim, draws)
