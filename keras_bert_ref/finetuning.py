"""Fine-tuning: one model, or the best of many by their scores on dev (paper, appendix A.3)."""

import dataclasses
import gc
import hashlib
import itertools
import json
import math
import shutil
import time
import warnings
from pathlib import Path

import numpy as np

import keras_bert_ref
from keras_bert_ref._tensorflow import keras, tf
from keras_bert_ref.checkpoints.opening import open_checkpoint
from keras_bert_ref.errors import CheckpointWarning, ConfigError, DivergedError, OutputError
from keras_bert_ref.files import replace_text, writing
from keras_bert_ref.optimization import BertAdamW, WarmupLinear
from keras_bert_ref.run_folder import hold_settings, read_metrics
from keras_bert_ref.strategies import Cluster, make_strategy
from keras_bert_ref.tasks.dataset import dataset_of, training_batches
from keras_bert_ref.tasks.prediction import Predictor, check_fits
from keras_bert_ref.tasks.registry import describe
from keras_bert_ref.tasks.scores import check_labelled
from keras_bert_ref.training import Trainer, TrainingSchedule

_PREDICTIONS = "dev_predictions.jsonl"  # of the best model, for the dev examples

# All that a run writes.
_FILES = ("run.json", "results.json", "model", "trials", _PREDICTIONS, "confusion.png")

# The paper's choices (A.3; 4e-5 is of section 4.1).
GRID = {
    "batch_size": (16, 32),
    "learning_rate": (5e-5, 4e-5, 3e-5, 2e-5),
    "epochs": (2, 3, 4),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """How one model is fine-tuned.

    Attributes:
        batch_size: rows of an update.
        learning_rate: at its peak, after a tenth of the updates; then linearly down to 0.
        epochs: times that the training set is gone through.
        seed: of the head's initial weights, of dropout and of the order of the data.
    """

    batch_size: int = 32
    learning_rate: float = 5e-5
    epochs: int = 3
    seed: int = 0

    def __post_init__(self):
        for name in ("batch_size", "epochs"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ConfigError(f"{name} must be a whole number above 0")
        if not 0 < self.learning_rate < 1:
            raise ConfigError(f"learning_rate must be between 0 and 1, not {self.learning_rate}")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed must be at least 0 and below 2³², not {self.seed}")

    @property
    def name(self):
        """What its folder is called."""
        return (
            f"batch{self.batch_size}-rate{self.learning_rate:g}-epochs{self.epochs}-seed{self.seed}"
        )


def trials_of(trial, restarts=1, over=GRID):
    """Returns the trials of the paper's grid, or of random restarts.

    Args:
        trial: a `Trial`; its seed is the first one.
        restarts: how many seeds each setting is tried with, as the paper does with BERT-large.
        over: field of `Trial` → values; {} for random restarts alone.
    """
    seeds = range(trial.seed, trial.seed + restarts)
    return [
        dataclasses.replace(trial, **dict(zip(over, values, strict=True)), seed=seed)
        for values in itertools.product(*over.values())
        for seed in seeds
    ]


class FineTuning:
    """A run: trials of a task from one checkpoint, of which the best on dev is kept.

    The folder gets `model/`, the best model so far, and `dev_predictions.jsonl`, its predictions;
    `results.json`, all trials; and `trials/`, a folder for each with its metrics and TensorBoard
    logs. Run again, it goes on where it stopped, in the middle of a trial too; trials that are done
    are not done again.

    Args:
        task: a `Task`.
        where: the checkpoint to start from, see `BertEncoder.from_pretrained`.
        train: examples with labels.
        dev: examples with labels, by whose score `task.metric` models are chosen.
        folder: where the run lives; made if absent.
        task_name: what `make_task` took, if it is not one of this library's tasks.
        dtype: a Keras dtype policy.
        patience: epochs without a better score on dev after which a trial ends early; None for
            never.
        micro_batches: parts that a batch is computed in, to save memory.
        strategy: see `make_strategy`.
        overwrite: whether a run found in the folder is deleted, rather than continued.

    Raises:
        ConfigError, InputError: an option or the data are impossible.
    """

    def __init__(
        self,
        task,
        where,
        train,
        dev,
        folder,
        *,
        task_name=None,
        dtype="float32",
        patience=None,
        micro_batches=1,
        strategy="auto",
        overwrite=False,
    ):
        self.task, self.where, self.folder = task, where, Path(folder)
        self.description = describe(task, task_name)
        self.train, self.dev = train, dev
        check_labelled(task, dev)
        self.labels = task.labels(train)
        self.dtype, self.patience, self.micro_batches = dtype, patience, micro_batches
        cluster = Cluster.from_environment()
        if strategy in ("multi-worker", "tpu") or (cluster and len(cluster.workers) > 1):
            raise ConfigError(
                "fine-tuning runs on one machine: leave TF_CONFIG unset, and name one of the "
                "strategies auto, one-device and mirrored"
            )
        self.strategy, self.overwrite = make_strategy(strategy), overwrite

    @property
    def results(self):
        """The trials that are done, a list of dicts, the best first.

        Each has the fields of its `Trial`, `dev`, the scores of its best epoch, which `epoch`
        counts from 1, and `history`, those of all epochs. One that diverged comes last, its `dev`
        and `epoch` are None, and its model is not kept even if earlier epochs were good.
        """
        path = self.folder / "results.json"
        if not path.exists():
            return []
        try:
            return json.loads(path.read_text(encoding="utf-8"))["trials"]
        except (ValueError, KeyError, TypeError):
            raise OutputError(f"{path} is damaged: delete {self.folder} to start again") from None

    def best_predictions(self):
        """Returns the best model's predictions for the dev examples."""
        text = (self.folder / _PREDICTIONS).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.split("\n") if line]

    def run(self, trials, report=None):
        """Runs the trials that are not done yet.

        Args:
            trials: a list of `Trial`.
            report: called as (trial, step, steps, metrics) after each host call, where metrics is
                None between logged steps, and has the scores on dev after an epoch.

        Returns:
            See `results`.

        Raises:
            CheckpointError: the model cannot be used, or the folder holds another run.
            ConfigError: a trial is impossible.
            DivergedError: no trial ended with a finite loss.
        """
        if not trials:
            raise ConfigError("there is no trial to run")
        self._prepare(trials)
        self._keep_best()
        for trial in trials:
            if trial.name not in {result["trial"] for result in self.results}:
                self._add(self._train(trial, report or (lambda *_: None)))
                gc.collect()  # the model is part of a cycle, and may fill the device
            self._keep_best()
        results = self.results
        if results[0]["dev"] is None:
            raise DivergedError(
                f"all {len(results)} trials diverged: lower learning_rate, or allow more epochs"
            )
        return results

    def _prepare(self, trials):
        """Checks all that can be before anything is written, and then whose folder it is."""
        parts = self.strategy.num_replicas_in_sync * self.micro_batches
        for trial in trials:
            if trial.batch_size % parts:
                raise ConfigError(
                    f"batch_size {trial.batch_size} does not divide into "
                    f"{self.strategy.num_replicas_in_sync} devices × {self.micro_batches} "
                    "micro-batches"
                )
        checkpoint = open_checkpoint(self.where)
        check_fits(self.task, checkpoint.tokenizer, checkpoint.config)
        if self.overwrite:
            for name in _FILES:
                place = self.folder / name
                shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
            self.overwrite = False
        hold_settings(
            self.folder,
            {
                "task": dataclasses.asdict(self.description),
                "model": str(self.where),
                "train": _fingerprint(self.train),
                "dev": _fingerprint(self.dev),
                "precision": self.dtype,
                "patience": self.patience,
                "micro_batches": self.micro_batches,
            },
        )

    def _train(self, trial, report):
        """Trains a model; its best epoch is left in `trials/…/model`. Returns the result."""
        folder = self.folder / "trials" / trial.name
        began = time.perf_counter()
        keras.utils.set_random_seed(trial.seed)
        with self.strategy.scope():
            model = self._model()
            batches = training_batches(self.task, model, self.train, trial.batch_size, trial.seed)
            steps = trial.epochs * batches.per_epoch
            rate = WarmupLinear(trial.learning_rate, steps, steps // 10)
            model.compile(optimizer=BertAdamW(rate))
        schedule = TrainingSchedule(
            steps=steps,
            log_every=min(50, batches.per_epoch),
            evaluate_every=batches.per_epoch,
            checkpoint_every=batches.per_epoch,
            keep=1,
            micro_batches=self.micro_batches,
        )
        trainer = Trainer(model, folder, schedule)
        predictor = Predictor(model, self.task)
        history = self._history(folder, trainer.latest_step)

        def evaluate():
            predictions = predictor(self.dev)
            scores = self.task.score(self.dev, predictions)
            best = max((one[self.task.metric] for one in history), default=None)
            if best is None or scores[self.task.metric] > best:
                chosen = self.task.chosen_on_dev(scores)
                if chosen != self.task:
                    predictions = Predictor(model, chosen)(self.dev)
                    scores = chosen.score(self.dev, predictions)
                model.task = describe(chosen, self.description.name)
                model.save_pretrained(folder / "model", overwrite=True)
                lines = [json.dumps(found) + "\n" for found in predictions]
                replace_text(folder / _PREDICTIONS, "".join(lines))
            history.append({"step": trainer.step, **scores})
            trainer.stop = self._has_waited(history)
            report(trial, trainer.step, steps, scores)
            return scores

        diverged = False
        # Interrupted while it was evaluated, an epoch has been saved without its scores.
        complete = bool(history) and history[-1]["step"] == steps
        if not complete and not self._has_waited(history):
            try:
                trainer.train(
                    self._dataset(batches),
                    evaluate,
                    report=lambda step, metrics: report(trial, step, steps, metrics),
                )
            except DivergedError:
                diverged = True  # other trials may do better
        best = {} if diverged else max(history, key=lambda one: one[self.task.metric])
        return {
            "trial": trial.name,
            **dataclasses.asdict(trial),
            "dev": {name: value for name, value in best.items() if name != "step"} or None,
            "epoch": None if diverged else best["step"] // batches.per_epoch,
            "history": history,
            "rows": len(batches.rows),
            "seconds": round(time.perf_counter() - began, 1),
        }

    def _model(self):
        kind = getattr(keras_bert_ref, self.task.model)
        options = {"labels": self.labels} if self.task.model in _LABELLED else {}
        with warnings.catch_warnings():
            # A new head is what fine-tuning is about; that an old one is dropped is worth a word.
            warnings.filterwarnings(
                "ignore", r"^(?!.*its own are for).*start afresh", CheckpointWarning
            )
            model = kind.from_pretrained(self.where, dtype=self.dtype, **options)
        lost = [path for path in model.load_report.initialized if not path.startswith(model.head)]
        if lost:
            CheckpointWarning.issue(
                f"{self.where} has no values for {', '.join(lost)}: fine-tuning starts them afresh"
            )
        return model

    def _dataset(self, batches):
        """Returns a function as `Trainer.train` takes it: (first step, context) to a dataset."""
        replicas = self.strategy.num_replicas_in_sync

        def make(step, context):
            def generate():
                for batch in batches.starting_at(step):
                    for n in range(replicas):
                        yield tf.nest.map_structure(lambda x, n=n: np.split(x, replicas)[n], batch)

            return dataset_of(batches, generate)

        return make

    def _history(self, folder, step):
        """Returns the scores of the epochs that a trial has behind it."""
        path = folder / "metrics.jsonl"
        lines = read_metrics(path) if path.exists() else []
        return [
            {name: value for name, value in line.items() if name != "split"}
            for line in lines
            if line["split"] == "heldout" and line["step"] <= step
        ]

    def _has_waited(self, history):
        """Returns whether so many epochs have passed without a better score that it is enough."""
        if self.patience is None or not history:
            return False
        values = [one[self.task.metric] for one in history]
        return len(values) - 1 - values.index(max(values)) >= self.patience

    def _add(self, result):
        def rank(one):
            return -one["dev"][self.task.metric] if one["dev"] else math.inf

        results = sorted([*self.results, result], key=rank)
        content = {
            "task": self.description.name,
            "metric": self.task.metric,
            "best": results[0]["trial"],
            "trials": results,
        }
        replace_text(self.folder / "results.json", json.dumps(content, indent=1) + "\n")

    def _keep_best(self):
        """Moves the best model to its place, and deletes what trials that are done leave."""
        for place, result in enumerate(self.results):
            folder = self.folder / "trials" / result["trial"]
            if place == 0 and result["dev"] and (folder / "model").is_dir():
                text = (folder / _PREDICTIONS).read_text(encoding="utf-8")
                replace_text(self.folder / _PREDICTIONS, text)
                _move(folder / "model", self.folder / "model")
            for left in (folder / "model", folder / "checkpoints", *folder.glob(".model.*")):
                shutil.rmtree(left, ignore_errors=True)


# Models whose labels are named when they are made.
_LABELLED = ("BertClassifier", "BertTagger")


def _fingerprint(examples):
    found = hashlib.sha256()
    for example in examples:
        found.update(repr(example).encode())
    return found.hexdigest()


def _move(source, target):
    """Puts a folder in the place of another."""
    old = target.with_name(f".{target.name}.old")
    with writing(target):
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.rename(old)
        source.rename(target)
    shutil.rmtree(old, ignore_errors=True)
