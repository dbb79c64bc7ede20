"""The training loop: exact resumption, defined ends, one mathematics."""

import functools
import json
import os
import signal
import threading

import numpy as np
import pytest
import training_process

from keras_bert_ref import BertAdamW, BertConfig, BertEncoder, BertPretrainer, WarmupLinear
from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.errors import (
    BertWarning,
    CheckpointError,
    ConfigError,
    DivergedError,
    OutputError,
    PreemptedError,
)
from keras_bert_ref.run_folder import hold_settings, read_metrics
from keras_bert_ref.strategies import make_strategy
from keras_bert_ref.training import Trainer, TrainingSchedule
from keras_bert_ref.training_state import TrainingState

B, V = 6, training_process.V
CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=13,
    max_position_embeddings=11,
)


batch = functools.partial(training_process.batch, rows=B)


def batches(first, _context=None):
    spec = tf.nest.map_structure(lambda a: tf.TensorSpec(a.shape, a.dtype), batch(0))

    def generate():
        number = first
        while True:
            yield batch(number)
            number += 1

    return tf.data.Dataset.from_generator(generate, output_signature=spec)


def model(seed=1, rate=1e-2, steps=20, **changes):
    keras.utils.set_random_seed(seed)
    with make_strategy("one-device").scope():
        config = BertConfig.from_dict({**CONFIG.to_dict(), **changes})
        built = BertPretrainer(config)
        built.compile(optimizer=BertAdamW(WarmupLinear(rate, steps, 2)))
    return built


def state(trained):
    return [v.numpy() for v in (*trained.variables, *trained.optimizer.variables)]


def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path):
    schedule = TrainingSchedule(steps=12, log_every=4, checkpoint_every=5, evaluate_every=6)
    held_out = batches(100).take(2)
    whole = model()
    expected = Trainer(whole, tmp_path / "whole", schedule).train(batches, held_out)

    def interrupt(step, _metrics):
        if step >= 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Trainer(model(), tmp_path / "parts", schedule).train(batches, held_out, report=interrupt)
    # Another seed: everything, the state of dropout included, must come from the checkpoint.
    resumed = model(seed=2)
    starts = []

    def resumed_batches(first, context):
        starts.append(first)
        return batches(first)

    trainer = Trainer(resumed, tmp_path / "parts", schedule)
    assert trainer.train(resumed_batches, held_out) == expected
    assert starts and starts[0] >= 7
    for left, right in zip(state(whole), state(resumed), strict=True):
        np.testing.assert_array_equal(left, right)

    lines = (tmp_path / "parts/metrics.jsonl").read_text().splitlines()
    logged = [json.loads(line) for line in lines]
    assert [(line["step"], line["split"]) for line in logged] == [
        (4, "train"),
        (6, "train"),
        (6, "heldout"),
        (8, "train"),
        (12, "train"),
        (12, "heldout"),
    ]


def test_a_finished_run_is_only_evaluated_again(tmp_path):
    schedule = TrainingSchedule(steps=3)
    first = Trainer(model(), tmp_path, schedule).train(batches, batches(100).take(2))
    again = model(seed=2)
    assert Trainer(again, tmp_path, schedule).train(batches, batches(100).take(2)) == first
    assert again.optimizer.iterations.numpy() == 3


def test_evaluation_is_that_of_keras(tmp_path):
    built = model()
    trainer = Trainer(built, tmp_path, TrainingSchedule(steps=1))
    ours = trainer.evaluate(batches(5).take(3))
    theirs = built.evaluate(batches(5).take(3), verbose=0, return_dict=True)
    assert ours == pytest.approx(theirs, rel=1e-6)


def test_micro_batches_change_nothing(tmp_path):
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    results = []
    for parts in (1, 2, 3):
        built = model(**no_dropout)
        schedule = TrainingSchedule(steps=5, micro_batches=parts)
        Trainer(built, tmp_path / str(parts), schedule).train(batches)
        results.append([v.numpy() for v in built.trainable_variables])
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            np.testing.assert_allclose(left, right, atol=2e-5)


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    def broken(first, _context):
        def spoil(features, labels, number):
            weight = tf.where(number == 5, np.float32("nan"), 1.0)
            return features, {**labels, "masked_lm_weights": labels["masked_lm_weights"] * weight}

        numbers = tf.data.Dataset.counter(first)
        return tf.data.Dataset.zip(batches(first), numbers).map(
            lambda data, number: spoil(*data, number)
        )

    schedule = TrainingSchedule(steps=20, checkpoint_every=4, log_every=2)
    with pytest.raises(DivergedError, match=r"step 6; the last good checkpoint is .*step-4"):
        Trainer(model(), tmp_path, schedule).train(broken)
    assert not list(tmp_path.glob("checkpoints/step-6*"))
    # The checkpoint is good: over sound data, the run goes on from it.
    resumed = model()
    Trainer(resumed, tmp_path, TrainingSchedule(steps=8)).train(batches)
    assert all(np.isfinite(v).all() for v in state(resumed))


def test_damaged_and_foreign_checkpoints_are_named(tmp_path):
    schedule = TrainingSchedule(steps=2)
    Trainer(model(), tmp_path, schedule).train(batches)
    with pytest.raises(CheckpointError, match="step-2 cannot be restored into this model"):
        Trainer(model(intermediate_size=14), tmp_path, schedule).train(batches)
    (data,) = tmp_path.glob("checkpoints/step-2.data*")
    content = bytearray(data.read_bytes())
    data.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="step-2 cannot be restored into this model"):
        Trainer(model(), tmp_path, schedule).train(batches)
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(CheckpointError, match="step-2 cannot be restored into this model"):
        Trainer(model(), tmp_path, schedule).train(batches)


def test_deleting_a_checkpoint_goes_on_from_the_one_before(tmp_path):
    schedule = TrainingSchedule(steps=4, checkpoint_every=2)
    trainer = Trainer(model(), tmp_path, schedule)
    trainer.train(batches)
    for file in tmp_path.glob("checkpoints/step-4.*"):
        file.unlink()
    again = Trainer(model(), tmp_path, schedule)
    assert again.latest_checkpoint.endswith("step-2")
    assert again.restore() == 2


def test_weights_that_are_not_finite_are_never_a_checkpoint(tmp_path):
    built = model()
    trainer = Trainer(built, tmp_path, TrainingSchedule(steps=4))
    weight = built.trainable_variables[-1]
    weight.assign(tf.fill(weight.shape, np.inf))
    with pytest.raises(DivergedError, match="a weight is not finite at step 3"):
        trainer._step.assign(3)
        trainer._save()
    assert trainer.latest_checkpoint is None


def test_a_last_line_cut_short_does_not_hold_up_a_run(tmp_path):
    schedule = TrainingSchedule(steps=2, log_every=1)
    Trainer(model(), tmp_path, schedule).train(batches)
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + '{"step": 3, "spl')
    Trainer(model(), tmp_path, TrainingSchedule(steps=3, log_every=1)).train(batches)
    assert [line["step"] for line in read_metrics(metrics)] == [1, 2, 3]


def test_a_plain_model_of_a_plain_script(tmp_path):
    built = BertPretrainer(CONFIG)
    with pytest.raises(ConfigError, match=r"no optimizer: call model\.compile"):
        Trainer(built, tmp_path, TrainingSchedule(steps=1))
    built.compile(optimizer=BertAdamW(1e-3))
    metrics = Trainer(built, tmp_path, TrainingSchedule(steps=2)).train(batches)
    assert np.isfinite(metrics["loss"])


def test_the_folder_must_be_writable(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"file cannot be written: File exists|Not a directory"):
        Trainer(model(), tmp_path / "file", TrainingSchedule(steps=1))


def test_settings_of_a_run_are_held(tmp_path):
    hold_settings(tmp_path / "run", {"steps": 3, "seed": 1, "data": "a"})
    hold_settings(tmp_path / "run", {"steps": 3, "seed": 1, "data": "a"})
    with pytest.raises(
        CheckpointError, match=r"data was 'a' and is now 'b'; seed was 1 and is now"
    ):
        hold_settings(tmp_path / "run", {"steps": 3, "seed": 2, "data": "b"})


def test_the_next_event():
    schedule = TrainingSchedule(steps=25, log_every=4, evaluate_every=10, checkpoint_every=6)
    events, step = [], 0
    while step < 25:
        events.append(step := schedule.next_event(step))
    assert events == [4, 6, 8, 10, 12, 16, 18, 20, 24, 25]
    with pytest.raises(ConfigError, match="steps must be a whole number above 0"):
        TrainingSchedule(steps=0)


def test_unknown_strategy():
    with pytest.raises(ConfigError, match="choose one of auto, one-device, mirrored"):
        make_strategy("horovod")


def test_a_run_told_to_end_saves_and_goes_on_to_the_same_bits(tmp_path):
    schedule = TrainingSchedule(steps=12, log_every=4)
    whole = model()
    Trainer(whole, tmp_path / "whole", schedule).train(batches)
    before = signal.getsignal(signal.SIGTERM)

    def terminate(step, _metrics):
        if step >= 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(
        PreemptedError, match=r"at step \d, which is saved: the same command goes on"
    ):
        Trainer(model(), tmp_path / "parts", schedule).train(batches, report=terminate)
    assert signal.getsignal(signal.SIGTERM) is before
    resumed = model(seed=2)
    Trainer(resumed, tmp_path / "parts", schedule).train(batches)
    for left, right in zip(state(whole), state(resumed), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("evaluation", [1, 2])  # amid the run, and at its end
def test_a_run_told_to_end_does_not_finish_an_evaluation(tmp_path, evaluation):
    schedule = TrainingSchedule(steps=12, log_every=4, checkpoint_every=5, evaluate_every=6)
    held_out = batches(100).take(40)
    whole = model()
    expected = Trainer(whole, tmp_path / "whole", schedule).train(batches, held_out)
    begun = 0

    def generate():
        nonlocal begun
        begun += 1
        for number, batch in enumerate(held_out.as_numpy_iterator()):
            if number == 5 and begun == evaluation:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    told = tf.data.Dataset.from_generator(generate, output_signature=held_out.element_spec)
    with pytest.raises(PreemptedError, match=f"at step {6 * evaluation}, which is saved"):
        Trainer(model(), tmp_path / "parts", schedule).train(batches, told)
    lines = read_metrics(tmp_path / "parts/metrics.jsonl")
    assert (lines[-1]["step"], lines[-1]["split"]) == (6 * evaluation, "train")
    resumed = model(seed=2)
    assert Trainer(resumed, tmp_path / "parts", schedule).train(batches, told) == expected
    for left, right in zip(state(whole), state(resumed), strict=True):
        np.testing.assert_array_equal(left, right)
    assert read_metrics(tmp_path / "parts/metrics.jsonl") == read_metrics(
        tmp_path / "whole/metrics.jsonl"
    )


def spoiled(*numbers):
    """Batches, of which those with these numbers give a loss that is not finite."""

    def spoil(features, labels, number):
        bad = tf.reduce_any(tf.equal(number, tf.constant(numbers, tf.int64)))
        weight = tf.where(bad, np.float32("nan"), 1.0)
        return features, {**labels, "masked_lm_weights": labels["masked_lm_weights"] * weight}

    def make(first, _context):
        numbers_ = tf.data.Dataset.counter(first)
        return tf.data.Dataset.zip(batches(first), numbers_).map(
            lambda data, number: spoil(*data, number)
        )

    return make


def test_rolling_back_leaves_out_the_data_since_the_checkpoint(tmp_path):
    """Steps 5 and 6 see batches 4 and 5, of which 5 is spoiled: the run goes on with batch 6."""
    schedule = TrainingSchedule(steps=8, checkpoint_every=4, on_divergence="roll-back")
    rolled = model()
    trainer = Trainer(rolled, tmp_path / "rolled", schedule)
    with pytest.warns(BertWarning, match="not finite at step 6: training goes on from step 4"):
        trainer.train(spoiled(5))
    assert trainer.step == 8

    def without(first, _context):
        numbers = (0, 1, 2, 3, 6, 7, 8, 9)
        parts = [batches(number).take(1) for number in numbers[first:]]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.concatenate(part)
        return whole

    plain = model()
    Trainer(plain, tmp_path / "plain", schedule).train(without)
    for left, right in zip(state(plain), state(rolled), strict=True):
        np.testing.assert_array_equal(left, right)

    # A run that goes on from here knows what was left out.
    starts = []

    def following(first, context):
        starts.append(first)
        return spoiled()(first, context)

    longer = TrainingSchedule(steps=9)
    Trainer(model(seed=2), tmp_path / "rolled", longer).train(following)
    assert starts == [10]


def test_rolling_back_is_given_up(tmp_path):
    schedule = TrainingSchedule(steps=8, checkpoint_every=2, on_divergence="roll-back")
    with (
        pytest.warns(BertWarning, match="goes on from step 2"),
        pytest.raises(DivergedError, match="last good checkpoint"),
    ):
        Trainer(model(), tmp_path / "often", schedule).train(spoiled(*range(3, 100)))
    with pytest.raises(DivergedError, match="no checkpoint yet"):
        Trainer(model(), tmp_path / "first", schedule).train(spoiled(0))


def test_a_scaled_loss_passes_over_updates_that_are_not_finite(tmp_path):
    keras.utils.set_random_seed(1)
    with make_strategy("one-device").scope():
        built = BertPretrainer(BertEncoder(CONFIG, dtype="mixed_float16"))
        built.compile(optimizer=BertAdamW(WarmupLinear(1e-3, 20, 2)))
    assert isinstance(built.optimizer, keras.optimizers.LossScaleOptimizer)
    trainer = Trainer(built, tmp_path, TrainingSchedule(steps=6, log_every=2))
    results = trainer.train(spoiled(3))
    assert results["skipped_updates"] == 1
    assert built.optimizer.iterations.numpy() == 5  # nor does the rate's schedule count it
    assert all(np.isfinite(values).all() for values in state(built))
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["skipped_updates"] for line in lines] == [0, 1, 1]
    assert lines[1]["loss"] is None and lines[2]["loss"] == results["loss"]

    # Where no scale helps, that is the end.
    built.optimizer.dynamic_scale.assign(2.0)
    trainer = Trainer(built, tmp_path / "end", TrainingSchedule(steps=20))
    with pytest.raises(DivergedError, match="no checkpoint yet"):
        trainer.train(spoiled(*range(20)))


def test_the_whole_step_compiles(tmp_path):
    """What a TPU asks of a step: static shapes, and nothing that XLA cannot compile."""
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    results = []
    for compiles in (False, True):
        built = model(**no_dropout)
        schedule = TrainingSchedule(steps=4, micro_batches=2)
        Trainer(built, tmp_path / str(compiles), schedule, jit_compile=compiles).train(batches)
        results.append(state(built))
    for left, right in zip(*results, strict=True):
        np.testing.assert_allclose(left, right, atol=2e-5)


def test_a_step_calls_neither_python_nor_strings():
    built = model()
    with built.distribute_strategy.scope():
        built.optimizer.build(built.trainable_variables)
    specs = tf.nest.map_structure(lambda a: tf.TensorSpec(a.shape, a.dtype), batch(0))
    step = tf.function(built.train_step).get_concrete_function(specs)
    graph = step.graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    names = {node.op for node in nodes}
    assert not {name for name in names if "Py" in name or "String" in name or "Host" in name}
    # Messages of assertions are all the strings there are, and XLA drops assertions.
    texts = {
        node.op
        for node in nodes
        if any(attr.type == tf.string.as_datatype_enum for attr in node.attr.values())
    }
    assert texts <= {"Const"}


def test_a_checkpoint_is_of_the_moment_it_was_asked_for(tmp_path, monkeypatch):
    """It is written while training goes on."""
    variable, may_write = tf.Variable([1.0, 2.0]), threading.Event()
    write = TrainingState._write

    def waiting(self, number):
        assert may_write.wait(30)
        write(self, number)

    monkeypatch.setattr(TrainingState, "_write", waiting)
    saved = TrainingState(tmp_path, keep=2, values=[variable])
    saved.save(1)
    variable.assign_add([4.0, 4.0])  # in place, where nobody else holds the buffer
    assert not list(tmp_path.glob("*.index"))
    may_write.set()
    assert saved.latest.endswith("step-1")
    other = tf.Variable([0.0, 0.0])
    assert TrainingState(tmp_path, keep=2, values=[other]).restore()
    assert other.numpy().tolist() == [1.0, 2.0]


def test_a_checkpoint_that_cannot_be_written_leaves_those_before(tmp_path, monkeypatch):
    variable = tf.Variable([1.0, 2.0])
    saved = TrainingState(tmp_path, keep=2, values=[variable])
    saved.save(1)
    saved.wait()

    def fail(prefix, *_, **__):
        (tmp_path / "step-2_temp").mkdir()
        (tmp_path / "step-2_temp" / "part").write_text("half")
        raise tf.errors.ResourceExhaustedError(None, None, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(tf.train.CheckpointManager, "save", fail)
        saved.save(2)
        with pytest.raises(OutputError, match=r"checkpoint of step 2 .* no space left"):
            saved.wait()
    assert not list(tmp_path.glob("step-2*"))
    assert saved.latest.endswith("step-1")
    saved.save(3)
    assert saved.latest.endswith("step-3")


def test_what_a_killed_process_left_is_cleared(tmp_path):
    (tmp_path / "step-7_temp").mkdir()
    saved = TrainingState(tmp_path, keep=2, values=[tf.Variable(1.0)])
    saved.save(1)
    saved.wait()
    assert not (tmp_path / "step-7_temp").exists()
