"""Named entities in CoNLL-2003, as tags of words (paper, section 5.3)."""

import dataclasses
import itertools
import re
from pathlib import Path

import numpy as np

from keras_bert_ref.errors import ConfigError, InputError
from keras_bert_ref.files import replace_text
from keras_bert_ref.tasks import conll, scores
from keras_bert_ref.tasks.conll import Sentence
from keras_bert_ref.tasks.contract import Row, Task
from keras_bert_ref.tasks.document_context import windows


@dataclasses.dataclass(frozen=True)
class Conll2003(Task):
    """A tag for each word, predicted from its first piece.

    An example is a `Sentence`, or with the context of documents a document, a tuple of sentences.
    What is longer than a row is cut between words into several.

    Attributes:
        context: what the model sees around a word: "sentence", or "document" for as much of its
            document as a row holds.
    """

    context: str = "sentence"

    name = "conll-2003"
    model = "BertTagger"
    metric = "f1"
    files = {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"}

    def __post_init__(self):
        super().__post_init__()
        if self.context not in ("sentence", "document"):
            raise ConfigError(f"context must be sentence or document, not {self.context!r}")

    @property
    def _by_document(self):
        return self.context == "document"

    def read(self, path, split):
        documents = conll.read(path)
        if split == "train" and documents[0][0].tags is None:
            raise InputError(f"{path} has words without tags: there is nothing to learn from it")
        if self._by_document:
            return [tuple(document) for document in documents]
        return [sentence for document in documents for sentence in document]

    def from_tfds(self, rows, info, split):
        if self._by_document:
            raise ConfigError(f"{self.name}: tensorflow-datasets does not say where documents end")
        names, examples = None, []
        for row in rows:
            words, tags = row["tokens"], row["ner"]
            names = names or info.features["ner"].feature.names
            examples.append(Sentence(tuple(words), conll.iob2([names[tag] for tag in tags])))
        return examples

    def example(self, value):
        if not self._by_document:
            return _sentence(value)
        parts = [value] if isinstance(value, str) else value
        if not isinstance(parts, tuple | list) or not parts:
            raise InputError(f"{value!r} is no document: give a list of sentences")
        return tuple(map(_sentence, parts))

    def labels(self, train):
        names = conll.tag_names(map(_sentences, train))
        if len(names) < 2:
            raise InputError("no word of the training set is tagged as an entity")
        return names

    def features(self, example, tokenizer, labels, training):
        sentences = _sentences(example)
        words = [word for sentence in sentences for word in sentence.words]
        pieces = [
            [max(1, len(tokenizer.token_ids(word))) for word in sentence.words]
            for sentence in sentences
        ]
        tag_ids = _tag_ids(sentences, labels) if training else None
        rows = []
        for window in windows(pieces, self.max_length - 2):
            encoding = tokenizer.encode_words(
                words[window.start : window.stop], max_length=self.max_length
            )
            starts = _first_pieces(encoding.word_ids)
            own = slice(window.own_start - window.start, window.own_stop - window.start)
            known = {}
            if training:
                known["label_ids"] = [-1] * len(encoding.input_ids)
                own_ids = tag_ids[window.own_start : window.own_stop]
                for place, tag_id in zip(starts[own], own_ids, strict=True):
                    known["label_ids"][place] = tag_id
            rows.append(Row(encoding.input_ids, encoding.segment_ids, known, starts[own]))
        return rows

    def decode(self, example, rows, outputs, labels):
        found = [
            labels[n]
            for row, output in zip(rows, outputs, strict=True)
            for n in np.argmax(np.asarray(output["logits"])[row.window], axis=-1)
        ]
        tags = iter(found)
        sentences = [
            _prediction(sentence.words, list(itertools.islice(tags, len(sentence.words))))
            for sentence in _sentences(example)
        ]
        return {"sentences": sentences} if self._by_document else sentences[0]

    def is_labelled(self, example):
        return all(sentence.tags is not None for sentence in _sentences(example))

    def score(self, examples, predictions):
        scores.check_labelled(self, examples)
        true = [sentence.tags for example in examples for sentence in _sentences(example)]
        found = [one["tags"] for prediction in predictions for one in _by_sentence(prediction)]
        result = conll.score(true, found)
        return {name: result[name] for name in ("precision", "recall", "f1", "accuracy")}

    def write(self, examples, predictions, folder, split):
        """Writes a line for each word: it, its tag where known, and the predicted one."""
        path = Path(folder) / f"{split}.conll"
        lines = []
        for example, prediction in zip(examples, predictions, strict=True):
            for sentence, one in zip(_sentences(example), _by_sentence(prediction), strict=True):
                columns = [sentence.words, sentence.tags, one["tags"]]
                rows = zip(*(column for column in columns if column is not None), strict=True)
                lines += [*(" ".join(row) + "\n" for row in rows), "\n"]
        replace_text(path, "".join(lines))
        return [path]


def _sentences(example):
    return (example,) if isinstance(example, Sentence) else example


def _by_sentence(prediction):
    return prediction.get("sentences", [prediction])


def _sentence(value):
    """Returns the sentence for a string, divided at white space, or for a list of words."""
    words = value.split() if isinstance(value, str) else value
    if not (
        isinstance(words, tuple | list)
        and words
        and all(isinstance(word, str) and re.fullmatch(r"[^ \t\r\n]+", word) for word in words)
    ):
        raise InputError(f"{value!r} is no sentence: give a text, or a list of words")
    return Sentence(tuple(words))


def _tag_ids(sentences, labels):
    """Returns the ids of the tags of all words."""
    ids = {name: n for n, name in enumerate(labels)}
    found = []
    for sentence in sentences:
        if sentence.tags is None:
            raise InputError("a sentence has no tags: it cannot be trained on")
        for tag in sentence.tags:
            if tag not in ids:
                raise InputError(f"tag {tag!r} is unknown; the model's are {', '.join(labels)}")
            found.append(ids[tag])
    return found


def _first_pieces(word_ids):
    """Returns the place of the first piece of each word."""
    before = [None, *word_ids]
    return [n for n, word in enumerate(word_ids) if word is not None and word != before[n]]


def _prediction(words, tags):
    entities = [
        {"start": start, "end": end, "type": kind, "text": " ".join(words[start:end])}
        for start, end, kind in conll.entities(tags)
    ]
    return {"tags": tags, "entities": entities}
