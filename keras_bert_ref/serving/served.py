"""What each kind of model answers.

A kind says in `compute` what it computes with its weights, in `answer` what it says for ids, and in
`text_signatures` what it says for texts. The first axis of every answer is that of the request, so
that a server may put several requests into one batch and take the answers apart again.
"""

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.errors import ConfigError
from keras_bert_ref.masked_prediction import keeping_masks
from keras_bert_ref.serving.inputs import INPUTS
from keras_bert_ref.serving.labels import best_label, label_names
from keras_bert_ref.text_layer import TextLayer

# A batch of texts.
TEXTS = tf.TensorSpec([None], tf.string)


class Served:
    """A model that answers for itself: its outputs are the answer.

    Args:
        model: an encoder or a task model.
        max_length: the most pieces of a text or pair.

    Attributes:
        inputs: a `tf.TensorSpec` for each input of `compute`.
        text: a `TextLayer`; None if the model has no tokenizer.
    """

    axes = 2  # of the inputs

    def __init__(self, model, max_length):
        self.model, self.tokenizer = model, self.reading(model.tokenizer)
        self.config = getattr(model, "encoder", model).config
        self.inputs = [tf.TensorSpec([None] * self.axes, tf.int32, name) for name in INPUTS]
        self.text = None
        if self.tokenizer is not None:
            try:
                self.text = TextLayer(self.tokenizer, max_length)
            except ConfigError as error:
                raise ConfigError(
                    f"{error}; to serve ids alone, set the tokenizer to None"
                ) from None

    def reading(self, tokenizer):
        """Returns the tokenizer that texts are read with, for that of the model."""
        return tokenizer

    def compute(self, features):
        """Returns name → tensor: all that the weights are needed for."""
        return self.model(features, training=False)

    def prepared(self, features):
        """Returns the inputs of `compute` for `INPUTS`."""
        return features

    def answer(self, features, computed):
        """Returns name → tensor: the answer for ids.

        Args:
            features: what `prepared` returned.
            computed: what `compute` returned.
        """
        return computed

    def answer_text(self, features, computed):
        """Returns name → tensor: the answer for texts."""
        return self.answer(features, computed)

    def text_signatures(self, compute):
        """Returns name → (input name → `tf.TensorSpec`, a function of the inputs in this order).

        Args:
            compute: a `Computation`.
        """

        def respond(*texts):
            features = self.prepared(self.text(*texts))
            return self.answer_text(features, compute(features))

        return {
            "serving_text": ({"texts": TEXTS}, respond),
            "serving_text_pairs": ({"texts": TEXTS, "pairs": TEXTS}, respond),
        }


class ServedEncoder(Served):
    """The hidden states; for texts, the pieces they belong to as well."""

    def answer_text(self, features, computed):
        tokens = tf.gather(tf.constant(self.tokenizer.vocabulary), features["input_ids"])
        return {**computed, "tokens": tokens, "input_mask": features["input_mask"]}


class ServedClassifier(Served):
    """The class, all classes in the order of their probabilities, and these; or a number."""

    def answer(self, features, computed):
        if self.model.labels is None:
            return computed
        return {"label": best_label(self.model.labels, computed["logits"]), **self._all(computed)}

    def _all(self, computed):
        logits = computed["logits"]
        return {
            "labels": label_names(self.model.labels, tf.shape(logits)[0]),
            "probabilities": tf.nn.softmax(logits),
            "logits": logits,
        }


class ServedTagger(ServedClassifier):
    """A tag for each piece; for texts, see `words`."""

    def answer(self, features, computed):
        return {"tags": best_label(self.model.labels, computed["logits"]), **self._all(computed)}

    def text_signatures(self, compute):
        from keras_bert_ref.serving.words import tagged_words

        def respond(texts):
            return tagged_words(texts, self.tokenizer, self.text, self.model.labels, compute)

        return {"serving_text": ({"texts": TEXTS}, respond)}


class ServedMultipleChoice(Served):
    """The index of the best choice, and the probability of each."""

    axes = 3

    def answer(self, features, computed):
        logits = computed["logits"]
        return {
            "choice": tf.argmax(logits, -1, tf.int32),
            "probabilities": tf.nn.softmax(logits),
            "logits": logits,
        }

    def text_signatures(self, compute):
        def respond(texts, choices):
            shape = tf.shape(choices)
            rows = self.text(tf.repeat(texts, shape[1]), tf.reshape(choices, [-1]))
            features = {
                name: tf.reshape(x, [*tf.unstack(shape), tf.shape(x)[1]])
                for name, x in rows.items()
            }
            return self.answer(features, compute(features))

        choices = tf.TensorSpec([None, None], tf.string)
        return {"serving_text": ({"texts": TEXTS, "choices": choices}, respond)}


class ServedSpanLabeler(Served):
    """The logits of each piece as start and end of the answer; for texts, the answer.

    Args:
        task: the `Squad` task, which says how windows are made and answers found.
    """

    def __init__(self, model, task):
        super().__init__(model, task.max_length)
        self.task = task

    def text_signatures(self, compute):
        from keras_bert_ref.serving.spans import answers

        def respond(questions, contexts):
            return answers(questions, contexts, self.tokenizer, self.text, self.task, compute)

        return {"serving_text": ({"questions": TEXTS, "contexts": TEXTS}, respond)}


class ServedPretrainer(Served):
    """The likeliest pieces behind each [MASK], and whether the second text follows the first.

    Args:
        top: how many pieces.
    """

    def __init__(self, model, max_length, top):
        super().__init__(model, max_length)
        if self.tokenizer is None:
            raise ConfigError("a masked language model is served with its tokenizer: set it")
        if not 1 <= top <= self.tokenizer.vocab_size:
            raise ConfigError(f"top must be from 1 to {self.tokenizer.vocab_size}, not {top}")
        self.top = top
        self.inputs.append(tf.TensorSpec([None, None], tf.int32, "masked_lm_positions"))

    def reading(self, tokenizer):
        return tokenizer and keeping_masks(tokenizer)

    def prepared(self, features):
        masks = tf.equal(features["input_ids"], self.tokenizer.mask_id)
        columns = tf.broadcast_to(tf.range(tf.shape(masks)[1]), tf.shape(masks))
        positions = tf.ragged.boolean_mask(columns, masks).to_tensor(-1)
        return {**features, "masked_lm_positions": positions}

    def compute(self, features):
        features = dict(features)
        positions = features["masked_lm_positions"]
        features["masked_lm_positions"] = tf.maximum(positions, 0)
        outputs = self.model(features, training=False)
        # A configuration may have room for more pieces than its vocabulary has.
        shares = tf.nn.softmax(outputs["masked_lm_logits"][..., : self.tokenizer.vocab_size])
        shares, ids = tf.math.top_k(shares, self.top)
        found = {"probabilities": shares, "ids": ids}
        if self.model.next_sentence:
            found["next_sentence_logits"] = outputs["next_sentence_logits"]
        return found

    def answer(self, features, computed):
        positions = features["masked_lm_positions"]
        real = positions[..., tf.newaxis] >= 0
        pieces = tf.gather(tf.constant(self.tokenizer.vocabulary), computed["ids"])
        answer = {
            "positions": positions,
            "pieces": tf.where(real, pieces, ""),
            "probabilities": tf.where(real, computed["probabilities"], 0.0),
        }
        if "next_sentence_logits" in computed:
            answer["next_sentence_probabilities"] = tf.nn.softmax(computed["next_sentence_logits"])
        return answer
