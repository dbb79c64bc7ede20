"""The BERT encoder (Devlin et al. 2019, section 3) as a Keras Functional model."""

from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.config import BertConfig
from keras_bert_ref.errors import ConfigError
from keras_bert_ref.layers import AttentionBias, Embeddings, TransformerBlock, dense
from keras_bert_ref.pretrained import Pretrained

ATTENTION_KINDS = ("bidirectional", "left_to_right")


@keras.saving.register_keras_serializable("keras_bert_ref")
class BertEncoder(Pretrained, keras.Model):
    """A stack of transformer blocks over word, position and segment embeddings.

    ```python
    encoder = BertEncoder(BertConfig.from_name("tiny"))
    outputs = encoder({"input_ids": ids, "input_mask": mask, "segment_ids": segments})
    outputs["sequence_output"]  # [B, S, H]
    ```

    The model takes a dict of int32 tensors [B, S] under the names of the published TFRecords:
    `input_ids`, `input_mask` (1 for real pieces, 0 for padding) and `segment_ids` (0 for sentence
    A, 1 for B). With `sequences_per_row` N above 1, a row may hold up to N sequences, one after the
    other, each with a [CLS] of its own; `input_mask` has n for the pieces of the nth, from 1. None
    sees another, and positions count from each one's start (Krell et al. 2021): the pieces become
    what they would in rows of their own. It returns a flat dict:

    - `sequence_output` [B, S, H], the last hidden state;
    - `pooled_output` [B, H], a dense layer with tanh over the last hidden state of [CLS], unless
      `pooler` is off; [B, N, H] of all sequences, which says nothing in unused places;
    - `hidden_states` [B, L+1, S, H] on request: 0 is the embedding output, L the last layer;
    - `attentions` [B, L, A, S, S] on request: probabilities, before dropout.

    All are float32, except that attentions have the policy's compute dtype.

    Args:
        config: a `BertConfig`.
        hidden_states: whether the outputs include all hidden states.
        attentions: whether the outputs include the attention probabilities.
        attention: "bidirectional", or "left_to_right" (table 5 of the paper).
        pooler: whether there is a pooler. Checkpoints trained on masked language modeling alone,
            on spans or on tags are published without one; a pooler of random weights must not
            then be read by accident.
        sequences_per_row: N, how many sequences a row may hold.
        dtype: a Keras dtype policy, such as "mixed_bfloat16"; None takes Keras's global policy.
        name: the model's name.

    Raises:
        ConfigError: `attention` is neither of the two, or `sequences_per_row` is no number above 0;
            or, when called, the inputs differ in shape or are longer than the position table.
    """

    def __init__(
        self,
        config,
        *,
        hidden_states=False,
        attentions=False,
        attention="bidirectional",
        pooler=True,
        sequences_per_row=1,
        dtype=None,
        name="bert",
    ):
        if not isinstance(config, BertConfig):
            raise ConfigError(f"config must be a BertConfig, not {type(config).__name__}")
        if attention not in ATTENTION_KINDS:
            raise ConfigError(
                f"attention {attention!r} is unknown: choose {' or '.join(ATTENTION_KINDS)}"
            )
        if isinstance(sequences_per_row, bool) or not (
            isinstance(sequences_per_row, int) and sequences_per_row > 0
        ):
            raise ConfigError(
                f"sequences_per_row must be a whole number above 0, not {sequences_per_row!r}"
            )
        dtype = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        if dtype.variable_dtype != "float32":
            raise ConfigError(
                f"dtype {dtype.name!r} would keep the weights in {dtype.variable_dtype}: choose "
                "float32, mixed_bfloat16 or mixed_float16"
            )
        inputs = {
            key: keras.Input((None,), dtype="int32", name=key)
            for key in ("input_ids", "input_mask", "segment_ids")
        }
        embeddings = Embeddings(config, name="embeddings", dtype=dtype)
        packed = sequences_per_row > 1
        attention_bias = AttentionBias(attention, packed, name="attention_bias", dtype=dtype)
        blocks = [
            TransformerBlock(config, name=f"layer_{number}", dtype=dtype)
            for number in range(config.num_hidden_layers)
        ]

        starts, positions = None, None
        if packed:
            starts = _Starts(sequences_per_row, name="starts")(inputs["input_mask"])  # [B, N]
            positions = _Positions(name="positions")(inputs["input_mask"], starts)  # [B, S]
        x = embeddings(inputs["input_ids"], inputs["segment_ids"], positions)  # [T, H]
        bias = attention_bias(inputs["input_mask"])
        states, probabilities = [x], []
        for block in blocks:
            x, block_probabilities = block(x, bias)
            states.append(x)
            probabilities.append(block_probabilities)

        like_ids = inputs["input_ids"]
        sequence_output = _Sequences(name="sequences", autocast=False)(x, like_ids)
        outputs = {"sequence_output": sequence_output}
        pooler_layer = None
        if pooler:
            first_piece = _FirstPiece(name="first_piece", autocast=False)(sequence_output, starts)
            pooler_layer = dense(
                config.hidden_size, config, activation="tanh", name="pooler", dtype=dtype
            )
            outputs["pooled_output"] = keras.ops.cast(pooler_layer(first_piece), "float32")
        if hidden_states:
            outputs["hidden_states"] = _Stack(name="hidden_states", autocast=False)(
                [
                    _Sequences(name=f"sequences_{n}", autocast=False)(s, like_ids)
                    for n, s in enumerate(states)
                ]
            )
        if attentions:
            outputs["attentions"] = _Stack(name="attentions", autocast=False)(probabilities)
        super().__init__(inputs=inputs, outputs=outputs, name=name)

        self.config = config
        self.attention = attention
        self.sequences_per_row = sequences_per_row
        self.embeddings = embeddings
        self.blocks = blocks
        self.pooler = pooler_layer
        self.dtype_policy = dtype  # Functional models would otherwise report the global policy
        self._wants = {"hidden_states": hidden_states, "attentions": attentions, "pooler": pooler}

    def call(self, inputs, training=None, mask=None):
        shapes = {name: tf.TensorShape(tensor.shape) for name, tensor in inputs.items()}
        first, *others = shapes.values()
        if first.rank != 2 or any(not shape.is_compatible_with(first) for shape in others):
            shapes = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise ConfigError(f"the inputs must all have one shape [B, S], not {shapes}")
        if first[1] is not None and first[1] > self.config.max_position_embeddings:
            raise ConfigError(
                f"the sequences have {first[1]} pieces, the configuration's "
                f"max_position_embeddings is {self.config.max_position_embeddings}: truncate them"
            )
        return super().call(inputs, training=training, mask=mask)

    def get_config(self):
        return {
            "config": self.config.to_dict(),
            **self._wants,
            "attention": self.attention,
            "sequences_per_row": self.sequences_per_row,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "name": self.name,
        }

    @classmethod
    def from_checkpoint(cls, checkpoint, **options):
        """Builds the encoder that an open `Checkpoint` describes, still without its weights."""
        told = {"attention": checkpoint.attention, "pooler": checkpoint.has("pooler")}
        return cls(checkpoint.config, **{**told, **options})

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "config": BertConfig.from_dict(config["config"])})


class _Sequences(keras.layers.Layer):
    """[T, H] back to [B, S, H], with B and S those of the ids."""

    def call(self, x, ids):
        return tf.reshape(x, [tf.shape(ids)[0], tf.shape(ids)[1], x.shape[-1]])


class _FirstPiece(keras.layers.Layer):
    """The hidden state of [CLS]: [B, S, H] to [B, H], or [B, N, H] where sequences start [B, N]."""

    def call(self, x, starts=None):
        if starts is None:
            return x[:, 0]
        return tf.gather(x, tf.minimum(starts, tf.shape(x)[1] - 1), batch_dims=1)


class _Starts(keras.layers.Layer):
    """Where in its row each of N sequences starts, given their pieces by number: int32 [B, N].

    One that is not there would start behind the last.
    """

    def __init__(self, sequences, *, name):
        super().__init__(name=name)
        self.sequences = sequences

    def call(self, input_mask):
        # In float32, because TensorFlow adds up integers on the host even where there is a GPU.
        lengths = tf.reduce_sum(tf.one_hot(input_mask - 1, self.sequences), axis=1)
        return tf.cast(tf.cumsum(lengths, axis=1, exclusive=True), tf.int32)


class _Positions(keras.layers.Layer):
    """The place of each piece in its sequence, of padding in its row: int32 [B, S]."""

    def call(self, input_mask, starts):
        start = tf.gather(starts, tf.maximum(input_mask - 1, 0), batch_dims=1)
        return tf.range(tf.shape(input_mask)[1]) - start


class _Stack(keras.layers.Layer):
    """A list of L tensors [B, …] to one [B, L, …]."""

    def call(self, tensors):
        return tf.stack(tensors, axis=1)
