"""`finetune`, `evaluate`, `predict`: the paper's tasks, and a user's own."""

import codecs
import contextlib
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from keras_bert_ref.cli import app
from keras_bert_ref.cli.checkpoints import Where
from keras_bert_ref.cli.pretraining import PRECISIONS, check_precision
from keras_bert_ref.cli.progress import console, progress_bar
from keras_bert_ref.errors import ConfigError, InputError, OutputError
from keras_bert_ref.files import parse_json, replace_text, writing

Data = Annotated[
    str, typer.Option(help="The folder of the task's files, or tfds:NAME, such as tfds:glue/mrpc.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the task: max_length=256."),
]
TaskName = Annotated[
    str | None,
    typer.Option("--task", help="Where the model does not say it, or file.py:Class."),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Rows that the model reads at once.")]


@app.command()
def finetune(
    task: Annotated[
        str,
        typer.Argument(
            help="cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, wnli, squad-1.1, squad-2.0, swag,"
            " codah, conll-2003; classification and regression (train.tsv and dev.tsv with the "
            "columns text, label and perhaps pair); or file.py:Class, a task of your own."
        ),
    ],
    model: Annotated[str, typer.Option(help="The checkpoint to start from.")],
    data: Data,
    out: Annotated[Path, typer.Option(help="The run's folder; a run found there is continued.")],
    batch_size: Annotated[int, typer.Option(help="Rows an update.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="The peak.")] = 5e-5,
    epochs: Annotated[int, typer.Option(help="Times through the training set.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the new head, dropout and the order.")] = 0,
    grid: Annotated[
        bool,
        typer.Option(
            "--grid",
            help="Try the paper's batch sizes, rates and epochs, 24 trials, in place of the above.",
        ),
    ] = False,
    restarts: Annotated[int, typer.Option(min=1, help="Seeds that each setting gets.")] = 1,
    patience: Annotated[
        int | None, typer.Option(min=1, help="Epochs without a better score that end a trial.")
    ] = None,
    precision: Annotated[str, typer.Option(help=", ".join(PRECISIONS))] = "float32",
    micro_batches: Annotated[
        int, typer.Option(min=1, help="Parts a batch is computed in, to save memory.")
    ] = 1,
    strategy: Annotated[str, typer.Option(help="auto, one-device or mirrored.")] = "auto",
    settings: Settings = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew, deleting a run found at --out.")
    ] = False,
):
    """Fine-tune a model for a task; keep the one that is best on dev.

    A run that ended early goes on where it stopped when the command is given again.
    """
    from keras_bert_ref.tasks.registry import make_task, read_split

    check_precision(precision)
    chosen = make_task(task, **_settings(settings))
    _check_place(out, model, data)
    train, dev = (read_split(chosen, data, split) for split in ("train", "dev"))
    from keras_bert_ref.finetuning import GRID, FineTuning, Trial, trials_of

    first = Trial(batch_size=batch_size, learning_rate=learning_rate, epochs=epochs, seed=seed)
    trials = trials_of(first, restarts, GRID if grid else {})
    run = FineTuning(
        chosen,
        model,
        train,
        dev,
        out,
        task_name=task,
        dtype=precision,
        patience=patience,
        micro_batches=micro_batches,
        strategy=strategy,
        overwrite=overwrite,
    )
    console.print(
        f"{task}: {len(train):,} examples to train on, {len(dev):,} to choose by",
        markup=False,
    )
    with progress_bar("steps") as bars:
        bar = bars.add_task("", total=1, note="")

        def report(trial, step, steps, metrics):
            number = 1 + trials.index(trial)
            name = f"trial {number} of {len(trials)}" if len(trials) > 1 else ""
            bars.update(bar, description=name, total=steps, completed=step)
            if metrics:
                shown = [f"{key} {_shown(value)}" for key, value in metrics.items()][:3]
                bars.update(bar, note=" ".join(shown))

        results = run.run(trials, report)
    _show_trials(chosen, results)
    best = results[0]
    console.print(f"best on dev: {best['trial']}, epoch {best['epoch']}", markup=False)
    _draw_confusion(run, dev)
    console.print(
        f"model: {out / 'model'}",
        f"curves: tensorboard --logdir {out / 'trials'}",
        sep="\n",
        markup=False,
        soft_wrap=True,
    )


@app.command()
def evaluate(
    where: Where,
    data: Data,
    split: Annotated[str, typer.Option(help="train, dev, test or another the task has.")] = "dev",
    task: TaskName = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the predictions and scores.json.")
    ] = None,
    batch_size: BatchSize = 32,
    precision: Annotated[str, typer.Option(help=", ".join(PRECISIONS))] = "float32",
    settings: Settings = None,
):
    """Score a fine-tuned model on a split, as the task's leaderboard counts."""
    from keras_bert_ref.tasks.registry import read_split

    if out:
        _make_folder(out)
    model, task = _model_and_task(where, task, settings, precision)
    examples = read_split(task, data, split)
    predictions = _predict(model, task, examples, batch_size)
    scores = task.score(examples, predictions)
    table = Table(title=f"{task.name}, {split}: {len(examples):,} examples")
    table.add_column("score")
    table.add_column("", justify="right")
    for name, value in scores.items():
        table.add_row(name, _shown(value))
    console.print(table)
    if out:
        _write(task, examples, predictions, out, split)
        replace_text(out / "scores.json", json.dumps(scores, indent=1) + "\n")


@app.command()
def predict(
    where: Where,
    texts: Annotated[
        str,
        typer.Argument(
            metavar="[INPUT]",
            help="A text a line (a pair: ' ||| ' between), or with the name .jsonl a JSON value a "
            "line, such as {question: …, context: …}; - is the standard input.",
        ),
    ] = "-",
    data: Annotated[
        str | None, typer.Option(help="Instead of INPUT: the task's folder, or tfds:NAME.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which of its splits.")] = "test",
    task: TaskName = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A file of a JSON object a line (by default, the standard output); with --data a "
            "folder, which gets the leaderboard's files as well."
        ),
    ] = None,
    json_lines: Annotated[
        bool, typer.Option("--json", help="The standard input has a JSON value a line.")
    ] = False,
    batch_size: BatchSize = 32,
    precision: Annotated[str, typer.Option(help=", ".join(PRECISIONS))] = "float32",
    settings: Settings = None,
):
    """Predict with a fine-tuned model: texts as they come, or a split for a leaderboard."""
    from keras_bert_ref.tasks.registry import read_split

    if data and texts != "-":
        raise ConfigError("give INPUT or --data, not both")
    if data and not out:
        raise ConfigError("--data needs --out, a folder for the predictions")
    if Path(texts).is_dir() or (texts != "-" and not Path(texts).exists()):
        raise InputError(f"{texts} is no file")
    if data:
        _make_folder(out)
    elif out and out.is_dir():
        raise OutputError(f"{out} is a folder: name a file")
    if sys.stdout is None or (texts == "-" and not data and sys.stdin is None):
        raise InputError("the standard input or output is closed: name INPUT and --out")
    model, task = _model_and_task(where, task, settings, precision)
    if data:
        examples = read_split(task, data, split)
        _write(task, examples, _predict(model, task, examples, batch_size), out, split)
        return
    from keras_bert_ref.tasks.prediction import Predictor

    json_lines = json_lines or texts.endswith((".jsonl", ".ndjson"))
    # Someone who types wants to see the answer to each line at once.
    at_once = 1 if texts == "-" and sys.stdin.isatty() else 8 * batch_size
    with _lines(texts) as lines, _output(out) as write:
        examples = (
            _example(task, place, line, json_lines)
            for place, line in lines
            if line.strip() or not json_lines
        )
        for prediction in Predictor(model, task, batch_size).stream(examples, at_once):
            write(json.dumps(prediction) + "\n")


def _settings(pairs):
    """Returns name → value for "name=value", where values are JSON or else strings."""
    found = {}
    for pair in pairs or ():
        name, mark, value = pair.partition("=")
        if not mark:
            raise ConfigError(f"--set wants NAME=VALUE, not {pair!r}")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _model_and_task(where, name, settings, precision):
    """Returns a fine-tuned model and its task, or the one that is named."""
    import keras_bert_ref
    from keras_bert_ref.checkpoints.opening import open_checkpoint
    from keras_bert_ref.tasks.registry import make_task, task_of

    check_precision(precision)
    found = open_checkpoint(where)
    settings = _settings(settings)
    if name is None:
        task = task_of(found, **settings)
    else:
        # What the model was trained with holds, whatever the task's file is called by now.
        known = {field.name for field in dataclasses.fields(make_task(name))}
        stored = found.task.settings if found.task else {}
        stored = {key: value for key, value in stored.items() if key in known}
        task = make_task(name, **{**stored, **settings})
    options = {}
    if task.model == found.model == "BertClassifier":
        words = getattr(task, "words", None)
        if words and found.labels and not found.named_labels and len(words) == len(found.labels):
            options["labels"] = tuple(words.values())  # the names that its labels lack
        else:
            task.check_labels(found.labels)
    with console.status(f"reading {where}"):
        model = getattr(keras_bert_ref, task.model).from_pretrained(
            where, dtype=precision, **options
        )
    fresh = [path for path in model.load_report.initialized if path.startswith(model.head)]
    if fresh:
        raise InputError(f"{where} is not fine-tuned: it has no {', '.join(fresh)}")
    return model, task


def _check_place(out, *needed):
    """Raises OutputError unless `out` is free, or holds a run and none of what is needed."""
    free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    if not free:
        try:
            holds_run = "task" in json.loads((out / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError):
            holds_run = False
        if not holds_run:
            raise OutputError(f"{out} is in use and holds no fine-tuning: choose another folder")
    for place in needed:
        if Path(place).resolve().is_relative_to(out.resolve()):
            raise OutputError(f"{place}, which is needed, lies in {out}: choose another folder")


def _make_folder(folder):
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


def _shown(value):
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _predict(model, task, examples, batch_size):
    from keras_bert_ref.tasks.prediction import Predictor

    predictions = []
    with progress_bar("examples") as bars:
        bar = bars.add_task("predicting", total=len(examples), note="")
        for prediction in Predictor(model, task, batch_size).stream(examples):
            predictions.append(prediction)
            bars.advance(bar)
    return predictions


def _write(task, examples, predictions, folder, split):
    lines = [json.dumps(prediction) + "\n" for prediction in predictions]
    replace_text(folder / "predictions.jsonl", "".join(lines))
    paths = [folder / "predictions.jsonl", *task.write(examples, predictions, folder, split)]
    console.print(*paths, sep="\n", markup=False, soft_wrap=True)


@contextlib.contextmanager
def _lines(path):
    """Gives an iterable of (place, line) of a file, or of the standard input."""
    if path == "-":
        yield _decoded("the standard input", sys.stdin.buffer)
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 (only what opening says is about this file)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        yield _decoded(path, file)


def _decoded(name, lines):
    for number, line in enumerate(lines, 1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            yield f"{name}, line {number}", line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise InputError(f"{name}, line {number}: not UTF-8; convert it first") from None


def _example(task, place, line, is_json):
    if is_json:
        value = parse_json(line, place)
        if isinstance(value, list):
            value = tuple(value)
    else:
        first, mark, second = line.rpartition(" ||| ")
        value = (first, second) if mark else second
    try:
        return task.example(value)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


@contextlib.contextmanager
def _output(path):
    """Gives a function that writes text; a file appears under its name when it is complete."""
    if path is None:

        def write(text):
            sys.stdout.write(text)
            sys.stdout.flush()

        yield write
        return
    part = path.with_name(f"{path.name}.part")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(part, "w", encoding="utf-8") as file:
                yield file.write
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _show_trials(task, results):
    table = Table(title=f"{task.name}: trials by {task.metric} on dev")
    names = list(results[0]["dev"])
    for column in ("batch", "rate", "epochs", "seed", "best epoch", *names, "seconds"):
        table.add_column(column, justify="right")
    for one in results:
        scores = [_shown(one["dev"][name]) if one["dev"] else "diverged" for name in names]
        table.add_row(
            str(one["batch_size"]),
            f"{one['learning_rate']:g}",
            str(one["epochs"]),
            str(one["seed"]),
            str(one["epoch"] or ""),
            *scores,
            f"{one['seconds']:.0f}",
        )
    console.print(table)


def _draw_confusion(run, dev):
    """Draws the best model's confusion matrix on dev, of a task with classes."""
    if run.task.model != "BertClassifier" or not run.labels:
        return
    from keras_bert_ref.cli.confusion import draw_confusion

    path = run.folder / "confusion.png"
    found = [prediction["label"] for prediction in run.best_predictions()]
    if draw_confusion([example.label for example in dev], found, run.labels, path):
        console.print(f"confusion matrix: {path}", markup=False, soft_wrap=True)
    else:
        console.print("no confusion matrix: pip install 'keras-bert-ref[plots]' draws one")
