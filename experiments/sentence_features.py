"""Frozen features in scikit-learn pipelines beside TF-IDF, on three GLUE tasks.

    python -m experiments.sentence_features ../shared/data/glue MODEL --cache runs/features

Both sides get the same linear model: logistic regression for SST-2 and MRPC, Ridge for STS-B. A
pair is compared as two vectors, by |u - v| and u · v of each dimension (scaled by the largest);
BERT can read it jointly as well. Scores are those of the dev set, in percent.
"""

import csv
import json
import warnings
from pathlib import Path
from typing import Annotated

import numpy as np
import scipy.sparse
import typer
from rich.console import Console
from rich.table import Table
from scipy.stats import pearsonr, spearmanr
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import f1_score
from sklearn.preprocessing import MaxAbsScaler

from keras_bert_ref import BertFeaturizer

TASKS = {
    "SST-2": ("sentence", None, "label"),
    "MRPC": ("#1 String", "#2 String", "Quality"),
    "STS-B": ("sentence1", "sentence2", "score"),
}
_SCORES = {
    "SST-2": ("accuracy",),
    "MRPC": ("accuracy", "F1"),
    "STS-B": ("Pearson", "Spearman"),
}


def read_split(folder, task, split):
    """Returns the texts (or two lists of them) and the labels of a GLUE file."""
    first, second, label = TASKS[task]
    with open(folder / task / f"{split}.tsv", encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        rows = [row for row in rows if row.get(label)]
    labels = np.array([float(row[label]) for row in rows])
    texts = [[row[name] for row in rows] for name in (first, second) if name]
    return texts, labels


def compare(one, other):
    """Returns |u - v| and u · v for the rows of two matrices."""
    if scipy.sparse.issparse(one):
        return scipy.sparse.hstack([abs(one - other), one.multiply(other)]).tocsr()
    return np.hstack([np.abs(one - other), one * other])


def features(kind, featurizer, train, dev):
    """Returns the matrices of both splits."""
    if kind == "TF-IDF":
        vectorizer = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
        vectorizer.fit([text for column in train for text in column])
        transform = vectorizer.transform
    else:
        transform = featurizer.transform
    if kind == "BERT, joint":
        return [transform(list(zip(*split, strict=True))) for split in (train, dev)]
    vectors = [[transform(column) for column in split] for split in (train, dev)]
    return [split[0] if len(split) == 1 else compare(*split) for split in vectors]


def score(task, kind, x, y):
    """Fits the linear model, its strength chosen on a tenth of the training set; scores dev."""
    regression = task == "STS-B"
    if kind != "TF-IDF":
        scaler = MaxAbsScaler().fit(x[0])
        x = [scaler.transform(part) for part in x]
    rows = np.random.default_rng(0).permutation(len(y[0]))
    held, rest = rows[: len(rows) // 10], rows[len(rows) // 10 :]

    def fitted(strength, chosen):
        model = (
            Ridge(alpha=1 / strength, solver="lsqr")
            if regression
            else LogisticRegression(C=strength, max_iter=300)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not converged: shows in the score
            return model.fit(x[0][chosen], y[0][chosen])

    strengths = (0.01, 0.1, 1.0, 10.0)
    best = max(strengths, key=lambda s: fitted(s, rest).score(x[0][held], y[0][held]))
    model = fitted(best, rows)
    found = model.predict(x[1])
    if regression:
        return {"Pearson": pearsonr(found, y[1])[0], "Spearman": spearmanr(found, y[1])[0]}
    scores = {"accuracy": (found == y[1]).mean(), "F1": f1_score(y[1], found)}
    return {name: scores[name] for name in _SCORES[task]}


def main(
    data: Annotated[Path, typer.Argument(help="The folder of GLUE's tasks.")],
    model: Annotated[str, typer.Argument(help="A checkpoint.")],
    task: Annotated[list[str] | None, typer.Option(help="Only these tasks.")] = None,
    layers: Annotated[str, typer.Option(help="last4, or numbers with commas.")] = "last4",
    precision: Annotated[str, typer.Option(help="A Keras dtype policy.")] = "mixed_bfloat16",
    cache: Annotated[Path | None, typer.Option(help="A folder for what was computed.")] = None,
    report: Annotated[Path | None, typer.Option(help="A JSON file for the scores.")] = None,
):
    """Prints dev scores of BERT's features and of TF-IDF, from one run."""
    chosen = layers if layers == "last4" else tuple(map(int, layers.split(",")))
    featurizer = BertFeaturizer(
        model, layers=chosen, dtype=precision, max_length=128, cache=cache and str(cache)
    )
    table, results = Table("task", "features", "score", title=f"dev scores, {precision}"), {}
    for name in task or TASKS:
        (train, y_train), (dev, y_dev) = (read_split(data, name, s) for s in ("train", "dev"))
        for kind in ("TF-IDF", "BERT", "BERT, joint") if len(train) == 2 else ("TF-IDF", "BERT"):
            x = features(kind, featurizer, train, dev)
            scores = score(name, kind, x, (y_train, y_dev))
            results[f"{name}, {kind}"] = {k: round(100 * float(v), 2) for k, v in scores.items()}
            shown = ", ".join(f"{k} {100 * v:.1f}" for k, v in scores.items())
            table.add_row(name, kind, shown)
            Console().print(f"{name}, {kind}: {shown}")
    Console().print(table)
    if report:
        report.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
