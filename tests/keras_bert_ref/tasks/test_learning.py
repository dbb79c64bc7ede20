"""Each kind of task is learned from the data, by a model small enough to do so in seconds."""

import numpy as np
import pytest
from letter_task import save_encoder

from keras_bert_ref.finetuning import FineTuning, Trial
from keras_bert_ref.tasks import make_task
from keras_bert_ref.tasks.conll import Sentence
from keras_bert_ref.tasks.squad_files import Question
from keras_bert_ref.tasks.swag import ChoiceExample

pytestmark = pytest.mark.slow


def drawn(rng, letters, most=6):
    return [str(letter) for letter in rng.choice(list(letters), rng.integers(2, most))]


def sentences(count, seed):
    """Returns sentences in which letters a and b are a person each, w and x a place."""
    rng, found = np.random.default_rng(seed), []
    kinds = dict.fromkeys("ab", "B-PER") | dict.fromkeys("wx", "B-LOC")
    for _ in range(count):
        words = drawn(rng, "abmmwx", most=9)
        found.append(Sentence(tuple(words), tuple(kinds.get(word, "O") for word in words)))
    return found


def questions(count, seed, impossible):
    """Returns questions whose answer is the letter of w to z, if the text has one."""
    rng, found = np.random.default_rng(seed), []
    for n in range(count):
        before, after = drawn(rng, "abcd"), drawn(rng, "abcd")
        if impossible and n % 2:
            found.append(Question(f"q{n}", "w x", " ".join([*before, *after]), (), True))
            continue
        text, start = str(rng.choice(list("wxyz"))), len(" ".join(before)) + 1
        context = " ".join([*before, text, *after])
        found.append(Question(f"q{n}", "w x", context, ((text, start),), impossible and False))
    return found


def choices(count, seed):
    """Returns questions whose right choice has other letters than the wrong ones."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        label = int(rng.integers(3))
        texts = [" ".join(drawn(rng, "wxyz" if n == label else "abcd")) for n in range(3)]
        found.append(ChoiceExample("m n", tuple(texts), label))
    return found


SQUAD = {"max_length": 32, "doc_stride": 8, "max_query_length": 4}
CASES = {
    "conll-2003": (sentences, {"max_length": 24}),
    "squad-1.1": (lambda count, seed: questions(count, seed, None), SQUAD),
    "squad-2.0": (lambda count, seed: questions(count, seed, True), SQUAD),
    "swag": (choices, {"max_length": 24}),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_learned(name, tmp_path):
    make, settings = CASES[name]
    run = FineTuning(
        make_task(name, **settings),
        save_encoder(tmp_path),
        make(120, 0),
        make(40, 1),
        tmp_path / "run",
    )
    (result,) = run.run([Trial(batch_size=8, learning_rate=3e-3, epochs=6)])
    assert result["dev"][run.task.metric] > 90
