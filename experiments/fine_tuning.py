"""The paper's tasks fine-tuned at a scale of minutes, beside a baseline of each.

    python -m experiments.fine_tuning ../shared/data MODEL --out runs/fine_tuning

DATA has the folders `glue`, `squad`, `other_tasks` and `conll2003`; MODEL is a checkpoint. Runs are
continued where they stopped, and what is done is not done again. SQuAD's training files are large:
its dev file is divided by article, two thirds to train on, the rest to score.
"""

import collections
import dataclasses
import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from keras_bert_ref.cli.progress import console, progress_bar
from keras_bert_ref.errors import BertError
from keras_bert_ref.files import replace_text
from keras_bert_ref.tasks.registry import make_task, read_split


@dataclasses.dataclass(frozen=True)
class Plan:
    """A task at this scale.

    Attributes:
        title: for the report.
        folder: of its files, under the data's.
        shown: the scores that the report has.
        published: the paper's, of BERT-base unless it says otherwise.
        trial: fields of `Trial` that differ from the paper's usual ones.
        settings: of the task.
    """

    title: str
    folder: str
    shown: tuple[str, ...]
    published: str
    trial: dict = dataclasses.field(default_factory=dict)
    settings: dict = dataclasses.field(default_factory=dict)


PLANS = {
    "wnli": Plan("WNLI", "glue/WNLI", ("accuracy",), "not given"),
    "rte": Plan("RTE", "glue/RTE", ("accuracy",), "66.4", {"batch_size": 16}),
    "mrpc": Plan("MRPC", "glue/MRPC", ("accuracy", "f1"), "F1 88.9", {"batch_size": 16}),
    "sts-b": Plan("STS-B", "glue/STS-B", ("pearson", "spearman"), "Spearman 85.8"),
    "cola": Plan("CoLA", "glue/CoLA", ("matthews", "accuracy"), "52.1"),
    "codah": Plan(
        "CODAH, fold 0",
        "other_tasks/codah_cv/fold_0",
        ("accuracy",),
        "SWAG 81.6",
        {"batch_size": 16},
    ),
    "conll-2003": Plan("CoNLL-2003", "conll2003", ("f1",), "96.4 dev, 92.4 test"),
    "sst-2": Plan("SST-2", "glue/SST-2", ("accuracy",), "93.5"),
    "squad-1.1": Plan("SQuAD 1.1", "squad", ("exact", "f1"), "80.8, 88.5", {}, {"max_length": 256}),
    "squad-2.0": Plan(
        "SQuAD 2.0",
        "squad",
        ("best_exact", "best_f1"),
        "78.7, 81.9 (large)",
        {"epochs": 2},
        {"max_length": 256},
    ),
}


def examples_of(name, task, data, out):
    """Returns the examples to train on and those to score."""
    folder = Path(data, PLANS[name].folder)
    if name.startswith("squad"):
        folder = divide_by_article(folder / task.files["dev"], Path(out, "data", name), task)
    return [read_split(task, folder, split) for split in ("train", "dev")]


def divide_by_article(path, folder, task):
    """Writes a file of SQuAD as two, every third article in the second; returns their folder."""
    content = json.loads(path.read_text(encoding="utf-8"))
    parts = {"train": [], "dev": []}
    for number, article in enumerate(content["data"]):
        parts["dev" if number % 3 == 2 else "train"].append(article)
    folder.mkdir(parents=True, exist_ok=True)
    for split, articles in parts.items():
        text = json.dumps({"version": content.get("version"), "data": articles})
        replace_text(folder / task.files[split], text)
    return folder


def baseline(name, task, train, dev):
    """Returns what the baseline is, and its scores on dev."""
    if name == "conll-2003":
        counts = collections.defaultdict(collections.Counter)
        for one in train:
            for word, tag in zip(one.words, one.tags, strict=True):
                counts[word][tag] += 1
        tags = {word: found.most_common(1)[0][0] for word, found in counts.items()}
        found = [{"tags": [tags.get(word, "O") for word in one.words]} for one in dev]
        return "each word's commonest tag", task.score(dev, found)
    if name == "squad-1.1":
        found = [{"id": one.id, "answer": one.context, "nbest": []} for one in dev]
        return "the whole paragraph", task.score(dev, found)
    if name == "squad-2.0":
        found = [{"id": one.id, "answer": "", "nbest": [], "null_odds": 0.0} for one in dev]
        return "never an answer", task.score(dev, found)
    if name == "codah":
        return "chance", {"accuracy": 25.0}
    if name == "sts-b":
        return "TF-IDF, Ridge", task.score(dev, _linear(train, dev, regression=True))
    majority = collections.Counter(one.label for one in train).most_common(1)[0][0]
    most = task.score(dev, [{"label": majority}] * len(dev))
    linear = task.score(dev, _linear(train, dev))
    best = most if most[task.metric] > linear[task.metric] else linear
    return "majority" if best is most else "TF-IDF, logistic regression", best


def _linear(train, dev, regression=False):
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge

    from experiments.sentence_features import compare

    vectorizer = TfidfVectorizer()
    vectorizer.fit([text for one in train for text in (one.text, one.pair) if text])

    def features(examples):
        first = vectorizer.transform([one.text for one in examples])
        if examples[0].pair is None:
            return first
        return compare(first, vectorizer.transform([one.pair for one in examples]))

    model = Ridge() if regression else LogisticRegression(max_iter=1000)
    model.fit(features(train), [one.label for one in train])
    key = "score" if regression else "label"
    return [{key: value} for value in model.predict(features(dev)).tolist()]


def run(name, data, where, out, *, seeds=1, precision="float32"):
    """Fine-tunes for a task; returns its row of the report."""
    from keras_bert_ref.finetuning import FineTuning, Trial, trials_of

    plan = PLANS[name]
    task = make_task(name, **plan.settings)
    train, dev = examples_of(name, task, data, out)
    title, scores = baseline(name, task, train, dev)
    finetuning = FineTuning(task, where, train, dev, Path(out, name), dtype=precision)
    trials = trials_of(Trial(**plan.trial), seeds, over={})
    with progress_bar("steps") as bars:
        bar = bars.add_task(name, total=1, note="")

        def report(trial, step, steps, metrics):
            on_dev = metrics and "loss" not in metrics
            note = {"note": f"{metrics[task.metric]:.2f}"} if on_dev else {}
            bars.update(bar, total=steps, completed=step, description=trial.name, **note)
            if note:
                console.print(f"{name}, {trial.name}, step {step} of {steps}: {note['note']}")

        results = finetuning.run(trials, report)
    return {
        "task": name,
        "train": len(train),
        "dev": len(dev),
        "baseline": title,
        "baseline_scores": {key: scores[key] for key in plan.shown},
        "scores": {key: [one["dev"][key] for one in results] for key in plan.shown},
        "trial": dataclasses.asdict(trials[0]),
        "seconds": float(np.mean([one["seconds"] for one in results])),
        "precision": precision,
    }


def table(rows):
    """Returns a Markdown table of rows, see `run`."""
    lines = [
        "| | train | dev | score | here | baseline | paper | epochs × batch, rate | minutes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        plan, trial = PLANS[row["task"]], row["trial"]
        here = ", ".join(_spread(values) for values in row["scores"].values())
        base = ", ".join(f"{value:.1f}" for value in row["baseline_scores"].values())
        cells = (
            plan.title,
            f"{row['train']:,}",
            f"{row['dev']:,}",
            ", ".join(plan.shown).replace("_", " "),
            here,
            f"{base} ({row['baseline']})",
            plan.published,
            f"{trial['epochs']} × {trial['batch_size']}, {trial['learning_rate']:g}",
            f"{row['seconds'] / 60:.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _spread(values):
    mean = f"{np.mean(values):.1f}"
    return f"{mean} ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else mean


def main(
    data: Annotated[Path, typer.Argument(help="The folder of all data.")],
    model: Annotated[str, typer.Argument(help="A checkpoint.")],
    out: Annotated[Path, typer.Option(help="The folder of the runs.")],
    task: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(PLANS)}.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Models for each task.")] = 1,
    precision: Annotated[str, typer.Option(help="A Keras dtype policy.")] = "float32",
    rows: Annotated[
        Path | None, typer.Option(help="The file that keeps all rows; by default in --out.")
    ] = None,
):
    """Fine-tunes for the tasks and prints a table of all that were made."""
    path = rows or out / "rows.json"
    try:
        for name in task or PLANS:
            row = run(name, data, model, out, seeds=seeds, precision=precision)
            made = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            replace_text(path, json.dumps({**made, name: row}, indent=1) + "\n")
            console.print(table([row]), markup=False, soft_wrap=True)
    except BertError as error:
        console.print(f"error: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    made = json.loads(path.read_text(encoding="utf-8"))
    console.print(table([made[name] for name in PLANS if name in made]), soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
