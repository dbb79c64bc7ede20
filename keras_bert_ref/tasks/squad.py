"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016 and 2018; paper, sections 4.2 and 4.3).

The answer to a question is a span of a text, or, in 2.0, that the text has none.
"""

import dataclasses
import json
import math
from pathlib import Path

from keras_bert_ref.errors import ConfigError, InputError
from keras_bert_ref.files import replace_text
from keras_bert_ref.sliding import sliding
from keras_bert_ref.tasks import scores
from keras_bert_ref.tasks.contract import Row, Task
from keras_bert_ref.tasks.squad_answers import decode
from keras_bert_ref.tasks.squad_files import (
    Question,
    check_trainable,
    make_question,
    read_questions,
    text_of,
    trainable,
)
from keras_bert_ref.tasks.squad_score import score, score_answers, score_with_null
from keras_bert_ref.tasks.squad_windows import Window, tokenized

__all__ = ["Question", "Squad", "Squad2", "score"]

_NEVER = -1e9  # null odds are always above it
_SPECIALS = 3  # [CLS] question [SEP] context [SEP]


@dataclasses.dataclass(frozen=True)
class Squad(Task):
    """An answer to each question, a span of its context (SQuAD 1.1, XQuAD).

    A prediction is a dict of `id`; `answer`, a text, with its `start` and `end` in the context in
    characters; `probability`, its share among `nbest`; and `nbest`, the best answers as in the
    original's `nbest_predictions.json`.

    Attributes:
        max_length: the most pieces of a row, which has the question and a window of the context.
        doc_stride: how far each window begins after the one before, in pieces.
        max_query_length: pieces that a question is cut to.
        max_answer_length: the most pieces of an answer.
        n_best: how many starts and ends of each window, and how many answers, are considered.
        out_of_window: what is learnt from a window without the answer: "null", that the answer is
            [CLS], as in the original; or "drop", nothing.
    """

    max_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    max_answer_length: int = 30
    n_best: int = 20
    out_of_window: str = "null"

    name = "squad-1.1"
    model = "BertSpanLabeler"
    metric = "f1"
    files = {"train": "train-v1.1.json", "dev": "dev-v1.1.json", "test": "test-v1.1.json"}
    tfds_splits = {"train": "train", "dev": "validation"}
    null = False  # whether a question may have no answer

    def __post_init__(self):
        super().__post_init__()
        for name in ("doc_stride", "max_query_length", "max_answer_length", "n_best"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} must be a whole number above 0, not {value!r}")
        room = self.max_length - self.max_query_length - _SPECIALS
        if self.doc_stride > room:
            raise ConfigError(
                f"max_length {self.max_length} leaves {max(room, 0)} pieces for the context beside "
                f"a question of max_query_length {self.max_query_length}, and doc_stride "
                f"{self.doc_stride} would pass over some: raise max_length or lower the others"
            )
        if self.out_of_window not in ("null", "drop"):
            raise ConfigError(f"out_of_window must be 'null' or 'drop', not {self.out_of_window!r}")

    def read(self, path, split):
        return read_questions(path, split == "train", self.null)

    def from_tfds(self, rows, info, split):
        places = ((f"tensorflow-datasets, row {n}", row) for n, row in enumerate(rows))
        found = ((place, _from_tfds(row, place)) for place, row in places)
        if split == "train":
            return trainable(found, "tensorflow-datasets", self.null)
        return [question for _, question in found]

    def example(self, value):
        if isinstance(value, Question):
            return value
        if isinstance(value, tuple | list) and len(value) == 2:
            value = dict(zip(("question", "context"), value, strict=True))
        place = "a question to answer"
        if not isinstance(value, dict):
            raise InputError(
                f"{type(value).__name__} where a pair (question, context), or a dict of question, "
                "context and, if wanted, id, should be"
            )
        return make_question(
            place,
            id=text_of({"id": "", **value}, "id", place),
            question=text_of(value, "question", place),
            context=text_of(value, "context", place),
        )

    def features(self, example, tokenizer, labels, training):
        question = tokenizer.token_ids(example.question)[: self.max_query_length]
        context = tokenized(tokenizer, example.context)
        head = [tokenizer.cls_id, *question, tokenizer.sep_id]
        room = self.max_length - len(question) - _SPECIALS
        answer = self._answer_pieces(example, context) if training else None
        rows = []
        for start, stop, owned in sliding(len(context.ids), room, self.doc_stride):
            known = {}
            if training:
                known = self._target(answer, start, stop, len(head))
                if known is None:
                    continue
            rows.append(
                Row(
                    [*head, *context.ids[start:stop], tokenizer.sep_id],
                    [0] * len(head) + [1] * (stop - start + 1),
                    known,
                    Window(len(head), context.spans[start:stop], owned),
                )
            )
        return rows

    def _answer_pieces(self, example, context):
        """Returns the first and last piece of the answer; () for none, None if it is lost."""
        check_trainable(example, self.null, f"question {example.id!r}")
        if example.impossible:
            return ()
        span = example.answer_span()
        return span and context.pieces_of(*span)

    def _target(self, answer, start, stop, first):
        """Returns the labels of a window; None if it is not to be trained on."""
        if answer is None:
            return None
        if answer and start <= answer[0] and answer[1] < stop:
            places = [piece - start + first for piece in answer]
        elif answer and self.out_of_window == "drop":
            return None
        else:
            places = 0, 0
        return dict(zip(("start_positions", "end_positions"), places, strict=True))

    def decode(self, example, rows, outputs, labels):
        found = self._decode(example, rows, outputs)
        return {"id": example.id, **_chosen(found, 0), "nbest": found.nbest}

    def _decode(self, example, rows, outputs):
        return decode(
            example.context,
            [row.window for row in rows],
            outputs,
            n_best=self.n_best,
            max_answer_length=self.max_answer_length,
            null=self.null,
        )

    def is_labelled(self, example):
        return bool(example.answers) or (self.null and bool(example.impossible))

    def score(self, examples, predictions):
        scores.check_labelled(self, examples)
        return score_answers(_gold(examples), [self.answer_of(one) for one in predictions])

    def answer_of(self, prediction):
        """Returns the text that a prediction amounts to."""
        return prediction["answer"]

    def write(self, examples, predictions, folder, split):
        """Writes `predictions.json` and `nbest_predictions.json`, as the original does.

        2.0 has `null_odds.json` too. See `Task.write`.

        Raises:
            InputError: two questions have the same id.
            OutputError: a file cannot be written.
        """
        if len({one["id"] for one in predictions}) < len(predictions):
            raise InputError("predictions are written by id, but questions share one")
        files = self._files(predictions)
        for name, content in files.items():
            replace_text(Path(folder) / name, json.dumps(content, indent=4) + "\n")
        return [Path(folder) / name for name in files]

    def _files(self, predictions):
        return {
            "predictions.json": {one["id"]: self.answer_of(one) for one in predictions},
            "nbest_predictions.json": {one["id"]: one["nbest"] for one in predictions},
        }


@dataclasses.dataclass(frozen=True)
class Squad2(Squad):
    """An answer to each question, a span of its context, or that there is none (SQuAD 2.0).

    A prediction has `null_odds` too: how much the score of "no answer" is above that of the best
    answer. Of "no answer", `answer` is "" and `start` and `end` are None; it is among `nbest`.

    Attributes:
        null_threshold: null odds above it make "no answer" the answer. Fine-tuning sets it to what
            is best for F1 on dev.
    """

    null_threshold: float = 0.0

    name = "squad-2.0"
    metric = "best_f1"
    files = {"train": "train-v2.0.json", "dev": "dev-v2.0.json", "test": "test-v2.0.json"}
    null = True

    def __post_init__(self):
        super().__post_init__()
        value = self.null_threshold
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ConfigError(f"null_threshold must be a number, not {value!r}")

    def decode(self, example, rows, outputs, labels):
        found = self._decode(example, rows, outputs)
        index = found.best(null=found.null_odds > self.null_threshold)
        return {
            "id": example.id,
            **_chosen(found, index),
            "nbest": found.nbest,
            "null_odds": found.null_odds,
        }

    def score(self, examples, predictions):
        """Returns the scores with `null_threshold`, and what the best threshold would give.

        See `squad_score.score_with_null`.
        """
        scores.check_labelled(self, examples)
        answers = [_best_text(one) for one in predictions]
        odds = [one["null_odds"] for one in predictions]
        return score_with_null(_gold(examples), answers, odds, self.null_threshold)

    def chosen_on_dev(self, scores):
        threshold = scores["best_f1_thresh"]
        # Where never to answer is best, the official count leaves the threshold at 0.
        if scores["best_f1"] <= 100 * scores.get("NoAns_total", 0) / scores["total"]:
            threshold = _NEVER
        return dataclasses.replace(self, null_threshold=threshold)

    def answer_of(self, prediction):
        return "" if prediction["null_odds"] > self.null_threshold else _best_text(prediction)

    def _files(self, predictions):
        odds = {one["id"]: one["null_odds"] for one in predictions}
        return {**super()._files(predictions), "null_odds.json": odds}


def _gold(examples):
    return [[text for text, _ in example.answers] for example in examples]


def _best_text(prediction):
    return next((one["text"] for one in prediction["nbest"] if one["text"]), "")


def _chosen(answers, index):
    """Returns the part of a prediction that is about the answer chosen."""
    start, end = answers.spans[index] or (None, None)
    one = answers.nbest[index]
    return {"answer": one["text"], "start": start, "end": end, "probability": one["probability"]}


def _from_tfds(row, place):
    texts, starts = row["answers"]["text"], row["answers"]["answer_start"]
    impossible = row.get("is_impossible")
    return make_question(
        place,
        id=_string(row["id"]),
        question=_string(row["question"]),
        context=_string(row["context"]),
        answers=[(_string(text), int(start)) for text, start in zip(texts, starts, strict=True)],
        impossible=None if impossible is None else bool(impossible),
        title=_string(row["title"]) if "title" in row else None,
    )


def _string(value):
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
