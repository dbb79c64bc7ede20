"""Fine-tuning runs: what is trained, what is kept, and what becomes of a run that is killed."""

import dataclasses
import json
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import checkpoint_models
import numpy as np
import pytest
from letter_task import DEV, TRAIN, examples, save_encoder

from keras_bert_ref import BertAdamW, BertClassifier
from keras_bert_ref.errors import (
    BertError,
    BertWarning,
    CheckpointError,
    ConfigError,
    DivergedError,
    InputError,
)
from keras_bert_ref.finetuning import GRID, FineTuning, Trial, trials_of
from keras_bert_ref.tasks.classification import TextClassification, TextRegression
from keras_bert_ref.tasks.prediction import Predictor
from keras_bert_ref.tasks.registry import make_task, task_of
from keras_bert_ref.training import Trainer

TASK = TextClassification(max_length=24)
TRIAL = Trial(batch_size=7, learning_rate=3e-3, epochs=2, seed=5)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("start"))


def prepared(start, folder, **options):
    options = {"task": TASK, "train": TRAIN, "dev": DEV, **options}
    task, train, dev = (options.pop(name) for name in ("task", "train", "dev"))
    return FineTuning(task, start, train, dev, folder, **options)


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    """Returns a run of one trial that was not disturbed, and its model."""
    run = prepared(start, tmp_path_factory.mktemp("done"))
    run.run([TRIAL])
    return run, BertClassifier.from_pretrained(run.folder / "model")


@pytest.fixture(scope="module")
def done(whole):
    """Returns the same run, after two random restarts."""
    run, _ = whole
    run.run(trials_of(TRIAL, restarts=3, over={}))
    return run


def test_the_grid_is_the_papers():
    trials = trials_of(Trial(), restarts=2)
    assert len(trials) == len({trial.name for trial in trials}) == 2 * 4 * 3 * 2
    assert {trial.learning_rate for trial in trials} == {5e-5, 4e-5, 3e-5, 2e-5}
    assert GRID["batch_size"] == (16, 32)
    assert GRID["epochs"] == (2, 3, 4)


def test_restarts_differ_and_the_best_on_dev_is_kept(done):
    results = done.results
    assert {result["seed"] for result in results} == {5, 6, 7}
    scores = [result["dev"]["accuracy"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 80  # letters tell the class
    assert len({json.dumps(result["history"]) for result in results}) == 3
    model = BertClassifier.from_pretrained(done.folder / "model", strict=True)
    assert model.labels == ("high", "low")
    found = TASK.score(DEV, Predictor(model, task_of(model))(DEV))
    assert found == pytest.approx(results[0]["dev"])


def test_predictions_of_the_reloaded_model_are_those_before_it_was_saved(done):
    model = BertClassifier.from_pretrained(done.folder / "model")
    assert Predictor(model, task_of(model))(DEV) == done.best_predictions()  # to the bit


def test_what_trials_need_no_more_is_deleted(done):
    trials = sorted(path.name for path in (done.folder / "trials").iterdir())
    assert trials == sorted(trial.name for trial in trials_of(TRIAL, restarts=3, over={}))
    for name in trials:
        left = {path.name for path in (done.folder / "trials" / name).iterdir()}
        assert left == {"metrics.jsonl", "logs"} | ({"dev_predictions.jsonl"} & left)


def test_trials_that_are_done_are_not_done_again(done, monkeypatch):
    monkeypatch.setattr(FineTuning, "_train", lambda *_: pytest.fail("trained again"))
    before = done.results
    again = prepared(done.where, done.folder)
    assert again.run(trials_of(TRIAL, restarts=3, over={})) == before


class Killed(BaseException):
    pass


def assert_ends_as_undisturbed(run, whole):
    """Asserts that a run ends with the scores and the weights of one that was not disturbed."""
    (result,) = run.run([TRIAL])
    undisturbed, model = whole
    (expected,) = [one for one in undisturbed.results if one["seed"] == TRIAL.seed]
    assert result["history"] == expected["history"]
    again = BertClassifier.from_pretrained(run.folder / "model")
    checkpoint_models.assert_same_weights(again, model)


@pytest.mark.parametrize("at", [1, 9])  # before the first epoch's end, and after
def test_a_killed_run_goes_on_to_the_same_model(start, whole, tmp_path, at):
    def kill(trial, step, steps, metrics):
        if step >= at:
            raise Killed

    with pytest.raises(Killed):
        prepared(start, tmp_path).run([TRIAL], kill)
    assert not (tmp_path / "results.json").exists()
    assert_ends_as_undisturbed(prepared(start, tmp_path), whole)


def test_a_run_with_other_settings_is_refused_by_name(start, done):
    with pytest.raises(CheckpointError, match=r"train was .* and is now"):
        prepared(start, done.folder, train=TRAIN[1:]).run([TRIAL])
    with pytest.raises(CheckpointError, match="max_length"):
        prepared(start, done.folder, task=TextClassification(max_length=25)).run([TRIAL])


@pytest.mark.parametrize("how", [KeyboardInterrupt, Killed])
def test_an_end_during_an_epochs_evaluation_loses_none(start, whole, tmp_path, how):
    def interrupted(self, *arguments):
        raise how

    for _ in range(2):  # in the first epoch's, and when it is made good
        with pytest.MonkeyPatch.context() as patch, pytest.raises(how):
            patch.setattr(TextClassification, "score", interrupted)
            prepared(start, tmp_path).run([TRIAL])
    assert_ends_as_undisturbed(prepared(start, tmp_path), whole)


def test_a_run_that_cannot_begin_leaves_nothing(start, tmp_path):
    with pytest.raises(BertError, match="nowhere"):
        prepared("nowhere", tmp_path).run([TRIAL])
    with pytest.raises(ConfigError, match="batch_size 7 does not divide into 1 devices × 3"):
        prepared(start, tmp_path, micro_batches=3).run([TRIAL])
    assert not list(tmp_path.iterdir())


def test_patience_ends_a_trial_and_a_restart_does_not_revive_it(start, tmp_path):
    # At such a rate nothing is learned; the first epoch is never beaten.
    trial = dataclasses.replace(TRIAL, learning_rate=1e-9, epochs=9)

    def kill(self, result):  # after the last epoch, before the result is written
        raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(FineTuning, "_add", kill)
        prepared(start, tmp_path, patience=2).run([trial])
    (result,) = prepared(start, tmp_path, patience=2).run([trial])
    assert len(result["history"]) == 3 and result["epoch"] == 1


def test_a_trial_that_diverges_does_not_end_the_others(start, tmp_path):
    wild = dataclasses.replace(TRIAL, learning_rate=0.9, seed=1, epochs=9)
    with pytest.MonkeyPatch.context() as patch:
        train, trained = Trainer.train, []

        def diverge(self, *arguments, **options):
            trained.append(self.folder.name)
            if self.folder.name == wild.name:
                raise DivergedError("not finite")
            return train(self, *arguments, **options)

        patch.setattr(Trainer, "train", diverge)
        with pytest.raises(DivergedError, match="all 1 trials diverged"):
            prepared(start, tmp_path).run([wild])
        results = prepared(start, tmp_path).run([wild, TRIAL])
        assert trained == [wild.name, TRIAL.name]
    assert [one["trial"] for one in results] == [TRIAL.name, wild.name]
    assert results[1]["dev"] is None
    assert (tmp_path / "model").is_dir()


def test_regression(start, tmp_path):
    def numbered(seed):
        return [
            dataclasses.replace(one, label=5.0 * (one.label == "high"))
            for one in examples(50, seed)
        ]

    task = TextRegression(max_length=24)
    run = prepared(start, tmp_path, task=task, train=numbered(0), dev=numbered(1))
    (result,) = run.run([dataclasses.replace(TRIAL, epochs=4)])
    assert result["dev"]["pearson"] > 60
    (prediction,) = task.predict(BertClassifier.from_pretrained(run.folder / "model"), ["a b c"])
    assert set(prediction) == {"score"}


def test_strings_are_predicted_through_the_task(done):
    model = BertClassifier.from_pretrained(done.folder / "model")
    task = task_of(model)
    first, second, nothing = task.predict(model, ["a b a d", ("x y", "z w"), ""])
    assert (first["label"], second["label"]) == ("low", "high")
    assert sum(nothing["probabilities"].values()) == pytest.approx(1)
    with pytest.raises(InputError, match="neither a text nor a pair"):
        task.predict(model, [None])


def test_fit_on_a_tasks_dataset_with_layers_frozen(start):
    with pytest.warns(BertWarning, match="start afresh"):
        model = BertClassifier.from_pretrained(start, labels=TASK.labels(TRAIN))
    model.encoder.embeddings.trainable = False
    model.encoder.blocks[0].trainable = False
    before = {v.path: v.numpy() for v in model.weights}
    model.compile(optimizer=BertAdamW(3e-3))
    data = TASK.dataset(model, TRAIN, batch_size=7)
    assert data.cardinality() == 7
    losses = model.fit(data, epochs=2, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    changed = {v.path for v in model.variables if not np.array_equal(before.get(v.path), v.numpy())}
    assert not any(path.startswith(("embeddings/", "layer_0/")) for path in changed)
    assert any(path.startswith("layer_1/") for path in changed)
    _, accuracy = model.evaluate(TASK.dataset(model, DEV), verbose=0)
    assert TASK.evaluate(model, DEV)["accuracy"] == pytest.approx(100 * accuracy)


def test_a_head_for_other_labels_is_replaced_with_a_warning(done, tmp_path):
    other = [dataclasses.replace(one, label=f"very {one.label}") for one in TRAIN]
    run = prepared(done.folder / "model", tmp_path, train=other, dev=other)
    with pytest.warns(BertWarning, match="its own are for the labels high, low"):
        run.run([dataclasses.replace(TRIAL, epochs=1)])
    assert BertClassifier.from_pretrained(run.folder / "model").labels == ("very high", "very low")


def test_a_new_head_is_nothing_to_warn_of(start, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", BertWarning)
        prepared(start, tmp_path).run([dataclasses.replace(TRIAL, epochs=1)])


def test_one_class_is_too_few(start, tmp_path):
    same = [dataclasses.replace(one, label="one") for one in TRAIN]
    with pytest.raises(InputError, match="but all have the label 'one'"):
        prepared(start, tmp_path, train=same)


def test_a_dev_label_that_training_has_not_counts_as_wrong(start, tmp_path):
    dev = [dataclasses.replace(one, label="other") for one in DEV]
    (result,) = prepared(start, tmp_path, dev=dev).run([dataclasses.replace(TRIAL, epochs=1)])
    assert result["dev"]["accuracy"] == 0


def test_rows_longer_than_the_model_are_refused(start, tmp_path):
    run = prepared(start, tmp_path, task=TextClassification(max_length=41))
    with pytest.raises(CheckpointError, match="rows of up to 41 pieces, the model reads 40"):
        run.run([TRIAL])


def test_dev_without_labels_is_refused(start, tmp_path):
    dev = [*DEV[:3], dataclasses.replace(DEV[3], label=None)]
    with pytest.raises(InputError, match="1 of 4 examples have no label"):
        prepared(start, tmp_path, dev=dev)  # before anything is trained
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"epochs": 0}, "epochs"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"seed": -1}, "seed"),
    ],
)
def test_impossible_trials(options, message):
    with pytest.raises(ConfigError, match=message):
        Trial(**options)


def test_settings_of_tasks_are_checked():
    assert make_task("mrpc", max_length=77).max_length == 77
    with pytest.raises(ConfigError, match="no setting 'length'; it has max_length"):
        make_task("mrpc", length=3)
    with pytest.raises(ConfigError, match="do you mean mrpc"):
        make_task("mprc")
    with pytest.raises(ConfigError, match="max_length"):
        make_task("mrpc", max_length=3)


@pytest.mark.slow
def test_two_devices_and_micro_batches_train_as_one(tmp_path):
    script = textwrap.dedent("""
        import sys
        import numpy as np
        sys.path[:0] = [sys.argv[1]]
        from letter_task import DEV, TRAIN, save_encoder
        from keras_bert_ref import BertClassifier, finetuning
        from keras_bert_ref._tensorflow import tf
        from keras_bert_ref.tasks import make_task
        from pathlib import Path

        cpu = tf.config.list_physical_devices("CPU")[0]
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        out = Path(sys.argv[2])
        start = save_encoder(out, dropout=0.0)
        load = BertClassifier.from_pretrained
        BertClassifier.from_pretrained = lambda *a, **options: load(*a, dropout=0.0, **options)
        strategies = iter(tf.distribute.MirroredStrategy(names) for names in (
            ["CPU:0"], ["CPU:0", "CPU:1"], ["CPU:0"]))
        finetuning.make_strategy = lambda name: next(strategies)
        trial = finetuning.Trial(batch_size=6, learning_rate=1e-3, epochs=2)
        histories, weights = [], []
        for number, parts in enumerate((1, 1, 3)):
            run = finetuning.FineTuning(
                make_task("classification", max_length=24), start, TRAIN, DEV, out / str(number),
                micro_batches=parts,
            )
            histories.append(run.run([trial])[0]["history"])
            model = BertClassifier.from_pretrained(out / str(number) / "model")
            weights.append([v.numpy() for v in model.trainable_variables])
        assert histories[0] == histories[1] == histories[2]
        for other in weights[1:]:
            for left, right in zip(weights[0], other, strict=True):
                np.testing.assert_allclose(left, right, atol=5e-5)
    """)
    result = subprocess.run(
        [sys.executable, "-c", script, str(Path(__file__).parents[1]), str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
