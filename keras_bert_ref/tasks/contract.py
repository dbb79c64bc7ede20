"""What a task is: read → features → dataset → head → decode → score.

A `Task` says what its files hold, what the model reads of an example, and what its output means.
Everything else (batches, training, choosing the best trial, files of predictions) is the same for
all tasks. A new one is a subclass in a file of its own: `keras-bert-ref finetune mine.py:Mine …`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from keras_bert_ref.errors import ConfigError


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What the model reads at once: an example, or a window of one.

    Attributes:
        input_ids: ids of the pieces, [S]; of a multiple choice, a list of these for each choice.
        segment_ids: of the same shape.
        labels: name → value, under the names and of the kinds that the model wants; a sequence has
            a value for each piece. Empty where they are not known.
        window: what `Task.decode` needs to know of the row.
    """

    input_ids: Sequence
    segment_ids: Sequence
    labels: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    window: Any = None


@dataclasses.dataclass(frozen=True)
class Task:
    """The contract. Settings are the fields of the dataclass; they are saved with the model.

    What a subclass must say is marked "abstract"; the rest has a default. Examples are objects of
    the task's own, predictions are what JSON can hold.

    Attributes:
        name: of the task, in lower case.
        model: the name of its model's class in `keras_bert_ref`.
        metric: the score, of those `score` returns, that chooses among models; more is better.
        files: split → file name in the task's folder.
        tfds_splits: split → what tensorflow-datasets calls it.
        max_length: the most pieces of a row, specials included.
    """

    max_length: int = 128

    name = "task"
    model = "BertClassifier"
    metric = "accuracy"
    files = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
    tfds_splits = {"train": "train", "dev": "validation", "test": "test"}

    def __post_init__(self):
        if type(self.max_length) is not int or self.max_length < 8:
            raise ConfigError(f"max_length must be a whole number above 7, not {self.max_length!r}")

    def read(self, path, split):
        """Abstract. Returns the examples in a file, in its order.

        Raises:
            InputError: the file cannot be read; the message names the line.
        """
        raise NotImplementedError

    def from_tfds(self, rows, info, split):
        """Returns the examples of a data set of tensorflow-datasets.

        Args:
            rows: an iterable of dicts of Python values.
            info: its `tfds.core.DatasetInfo`, for the names of classes.
            split: "train", "dev" or "test".
        """
        raise ConfigError(f"{self.name} does not read tensorflow-datasets: give a folder")

    def example(self, value):
        """Abstract. Returns the example, without a label, for a value that a user wants predicted.

        Raises:
            InputError: the value is of another kind.
        """
        raise NotImplementedError

    def labels(self, train):
        """Returns the names of the model's labels, given the training examples; None for none."""
        return None

    def check_labels(self, labels):
        """Raises InputError if a model with these labels cannot have been made for the task."""

    def features(self, example, tokenizer, labels, training):
        """Abstract. Returns the `Row`s of an example, at least one unless `training`.

        Args:
            example: an example.
            tokenizer: a `WordPieceTokenizer`.
            labels: the model's labels.
            training: whether rows are to be trained on, and have labels.
        """
        raise NotImplementedError

    def decode(self, example, rows, outputs, labels):
        """Abstract. Returns the prediction for an example.

        Args:
            example: an example.
            rows: its rows.
            outputs: for each row, the model's outputs: name → array, without the batch's axis and
                without padding.
            labels: the model's labels.
        """
        raise NotImplementedError

    def is_labelled(self, example):
        """Returns whether an example has what it takes to be scored."""
        return example.label is not None

    def score(self, examples, predictions):
        """Abstract. Returns name → score, in percent as leaderboards have them.

        Raises:
            InputError: an example has no label.
        """
        raise NotImplementedError

    def chosen_on_dev(self, scores):
        """Returns the task with the settings that its scores on dev show to be best."""
        return self

    def dataset(self, model, examples, batch_size=32, seed=0):
        """Returns a `tf.data.Dataset` for `fit`: an epoch, of another order each time.

        Args:
            model: a model for this task, with its tokenizer.
            examples: examples with labels.
            batch_size: B, rows of a batch; the last one is filled up with rows that do not count.
            seed: of the order.
        """
        from keras_bert_ref.tasks.dataset import epochs_of, training_batches

        return epochs_of(training_batches(self, model, examples, batch_size, seed))

    def predict(self, model, values, batch_size=32):
        """Returns the predictions for values that `example` takes, such as texts.

        Args:
            model: a model that was fine-tuned for this task, with its tokenizer.
            values: an iterable.
            batch_size: rows that the model reads at once.
        """
        from keras_bert_ref.tasks.prediction import Predictor

        return Predictor(model, self, batch_size)([self.example(value) for value in values])

    def evaluate(self, model, examples, batch_size=32):
        """Returns the scores of a model on examples, see `score`."""
        from keras_bert_ref.tasks.prediction import Predictor

        return self.score(examples, Predictor(model, self, batch_size)(examples))

    def write(self, examples, predictions, folder, split):
        """Writes predictions in the shape that the task's leaderboard takes; returns the paths."""
        return []
