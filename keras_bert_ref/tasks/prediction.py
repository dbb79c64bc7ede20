"""From examples to predictions: rows in batches through the model, and decoded."""

import itertools

import numpy as np

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import BertError, CheckpointError
from keras_bert_ref.tasks.batching import prediction_batches

_AT_ONCE = 2048  # examples


class Predictor:
    """Predicts with a fine-tuned model.

    Args:
        model: a task model with its tokenizer.
        task: the `Task` that it was fine-tuned for.
        batch_size: rows that the model reads at once.

    Raises:
        CheckpointError: the model has no tokenizer, or is too short for the task.
    """

    def __init__(self, model, task, batch_size=32):
        check_fits(task, model.tokenizer, model.encoder.config)
        self.model, self.task, self.batch_size = model, task, batch_size
        specs = {name: tf.TensorSpec(x.shape, x.dtype, name) for name, x in model.input.items()}
        # Which outputs have an axis of pieces (or choices), and so padding.
        self._padded = {
            name: len(x.shape) > 1 and x.shape[1] is None for name, x in model.output.items()
        }

        @tf.function(input_signature=[specs], autograph=False)
        def forward(features):
            return model(features, training=False)

        self._forward = forward

    def __call__(self, examples):
        """Returns the predictions for a list of examples."""
        return list(self.stream(examples))

    def stream(self, examples, at_once=_AT_ONCE):
        """Yields a prediction for each of an iterable of examples, in order.

        Args:
            examples: an iterable, of any length.
            at_once: how many are read before the first is predicted; among so many, rows are
                sorted by length.

        Raises:
            BertError: what the iterable raises, after the predictions for what came before.
        """
        examples, failed = iter(examples), None
        while failed is None:
            chunk = []
            try:
                for example in itertools.islice(examples, at_once):
                    chunk.append(example)
            except BertError as error:  # after what came before it
                failed = error
            if not chunk:
                break
            yield from self._predict(chunk)
        if failed is not None:
            raise failed

    def _predict(self, examples):
        task, labels = self.task, getattr(self.model, "labels", None)
        rows = [task.features(one, self.model.tokenizer, labels, False) for one in examples]
        outputs = iter(self._outputs([row for found in rows for row in found]))
        for example, found in zip(examples, rows, strict=True):
            mine = list(itertools.islice(outputs, len(found)))
            yield task.decode(example, found, mine, labels)

    def _outputs(self, rows):
        results = [None] * len(rows)
        longest = self.model.encoder.config.max_position_embeddings
        for chosen, features in prediction_batches(rows, self.batch_size, longest):
            features = {name: tf.constant(x) for name, x in features.items()}
            outputs = {name: np.asarray(x) for name, x in self._forward(features).items()}
            for place, number in enumerate(chosen):
                size = len(rows[number].input_ids)
                results[number] = {
                    name: x[place][:size] if self._padded[name] else x[place]
                    for name, x in outputs.items()
                }
        return results


def check_fits(task, tokenizer, config):
    """Raises CheckpointError if a checkpoint has no tokenizer, or reads fewer pieces than needed.

    Args:
        task: a `Task`.
        tokenizer: of the checkpoint.
        config: its `BertConfig`.
    """
    if tokenizer is None:
        raise CheckpointError("the model has no tokenizer: set it, or keep vocab.txt with it")
    longest = config.max_position_embeddings
    if task.max_length > longest:
        raise CheckpointError(
            f"{task.name} has rows of up to {task.max_length} pieces, the model reads {longest}: "
            "lower max_length"
        )
