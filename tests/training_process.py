"""A program that trains a small model, alone or as a worker of several: see `main`.

    python -P training_process.py FOLDER SETTINGS

-P, because this folder has one named like the package. SETTINGS are JSON; each defaults as in
`main`. Workers are told of each other by TF_CONFIG.
"""

import json
import sys
from pathlib import Path

import numpy as np

B, S, P, V = 8, 7, 3, 29


def batch(number, rows=B):
    """A batch that is a function of its number."""
    rng = np.random.default_rng(number)
    weights = rng.integers(0, 2, (rows, P)).astype("float32")
    features = {
        "input_ids": rng.integers(0, V, (rows, S)),
        "input_mask": (np.arange(S) < rng.integers(3, S + 1, (rows, 1))),
        "segment_ids": rng.integers(0, 2, (rows, S)),
        "masked_lm_positions": rng.integers(0, 3, (rows, P)),
    }
    labels = {
        "masked_lm_ids": rng.integers(0, V, (rows, P)),
        "next_sentence_labels": rng.integers(0, 2, rows),
    }
    features, labels = (
        {name: values.astype("int32") for name, values in part.items()}
        for part in (features, labels)
    )
    return features, {**labels, "masked_lm_weights": weights}


def dataset(first, share=(0, 1), *, rows=None, spoiled=(), pause=0.0):
    """Batches from number `first` on, or one worker's share of each, cut into `rows`."""
    import time

    from keras_bert_ref._tensorflow import tf

    part, parts = share
    spec = tf.nest.map_structure(
        lambda a: tf.TensorSpec((B // parts, *a.shape[1:]), a.dtype), batch(0)
    )

    def share_of(values):
        return np.split(values, parts)[part]

    def generate():
        number = first
        while True:
            features, labels = tf.nest.map_structure(
                lambda a: np.split(a, parts)[part], batch(number)
            )
            if number in spoiled and part == parts - 1:
                # The loss is no number here, and 0 on other replicas.
                labels["masked_lm_weights"][:] = np.inf
            yield features, labels
            number += 1
            time.sleep(pause)

    whole = tf.data.Dataset.from_generator(generate, output_signature=spec)
    return whole if rows is None else whole.unbatch().batch(rows, drop_remainder=True)


def main(
    folder,
    *,
    strategy="one-device",
    devices=1,
    parts=(1,),
    steps=20,
    seed=1,
    rate=1e-2,
    precision="float32",
    dropout=0.0,
    pause=0.0,
    timeout=60,
    spoiled=(),
    fails_at=None,
    batch_size=B,
    evaluation_batches=5,
    evaluation_pause=0.0,
    **schedule,
):
    """Trains once for each number of micro-batches in `parts`; saves the weights of each."""
    import time

    from keras_bert_ref import BertAdamW, BertConfig, BertEncoder, BertPretrainer, WarmupLinear
    from keras_bert_ref._tensorflow import keras, tf
    from keras_bert_ref.errors import RecordError
    from keras_bert_ref.job import Job
    from keras_bert_ref.strategies import make_strategy
    from keras_bert_ref.training import Trainer, TrainingSchedule

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * devices
    )
    if strategy == "mirrored":
        strategy = tf.distribute.MirroredStrategy([f"CPU:{n}" for n in range(devices)])
    else:
        strategy = make_strategy(strategy, timeout=timeout)
    job = Job(strategy)
    job.check_same({"seed": seed, "rate": rate})
    config = BertConfig(
        vocab_size=V,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=13,
        max_position_embeddings=11,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    for count in parts:
        keras.utils.set_random_seed(seed)
        with strategy.scope():
            model = BertPretrainer(BertEncoder(config, dtype=precision))
            model.compile(optimizer=BertAdamW(WarmupLinear(rate, 20, 2)))
        place = Path(folder, str(count))
        trainer = Trainer(
            model, place, TrainingSchedule(steps=steps, micro_batches=count, **schedule)
        )

        def batches(first, context):
            share = context.input_pipeline_id, context.num_input_pipelines
            return dataset(
                first, share, rows=batch_size // context.num_replicas_in_sync, spoiled=spoiled
            )

        def report(step, _metrics):
            print("step", step, flush=True)
            time.sleep(pause)
            if fails_at is not None and step >= fails_at:
                raise RecordError("record 7 is damaged")

        evaluation = dataset(1000, rows=3, pause=evaluation_pause).take(evaluation_batches)
        results = trainer.train(batches, evaluation, report=report)
        if job.is_first:
            values = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
            np.savez(place / "weights.npz", *values)
            Path(place, "results.json").write_text(json.dumps(results))
        job.wait()


if __name__ == "__main__":
    from keras_bert_ref.errors import BertError, PreemptedError

    try:
        main(sys.argv[1], **json.loads(sys.argv[2]))
    except BertError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(75 if isinstance(error, PreemptedError) else 1)
