"""Frozen features in scikit-learn pipelines beside TF-IDF, on three GLUE tasks.

    python -m experiments.sentence_features ../shared/data/glue MODEL --cache runs/features
    python -m experiments.sentence_features ../shared/data/glue MODEL --task SST-2 --per-layer \\
        --report runs/sst2.json

Both sides get the same linear model: logistic regression for SST-2 and MRPC, Ridge for STS-B. A
pair is compared as two vectors, by |u - v| and u · v of each dimension (scaled by the largest);
BERT can read it jointly as well. Scores are those of the dev set, in percent. The second command
also scores each layer by itself, and draws the scores into runs/sst2.png.
"""

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

from experiments import layer_curve
from keras_bert_ref import BertFeaturizer
from keras_bert_ref.checkpoints.opening import open_checkpoint
from keras_bert_ref.errors import BertError, ConfigError
from keras_bert_ref.features.combining import layer_numbers
from keras_bert_ref.files import replace_text, writing
from keras_bert_ref.strategies import fast_precision
from keras_bert_ref.tasks import registry

_SCORES = {
    "SST-2": ("accuracy",),
    "MRPC": ("accuracy", "F1"),
    "STS-B": ("Pearson", "Spearman"),
}
_TFIDF = {
    "TF-IDF, tuned": {"ngram_range": (1, 2), "min_df": 2, "sublinear_tf": True},
    "TF-IDF, defaults": {},
}
_MAX_LENGTH = 128  # pieces of a text or a joint pair

console = Console()


def read_split(folder, name, split):
    """Returns the texts of a GLUE task, as one list or (of pairs) two, and the labels.

    Raises:
        InputError: the file cannot be read.
    """
    task = registry.make_task(name.lower())
    examples = registry.read_split(task, folder / name, split)
    texts = [[one.text for one in examples]]
    if examples[0].pair is not None:
        texts.append([one.pair for one in examples])
    classes = task.labels(examples)
    labels = [classes.index(one.label) if classes else one.label for one in examples]
    return texts, np.array(labels)


def compare(one, other):
    """Returns |u - v| and u · v, side by side, for the vectors of two arrays."""
    if scipy.sparse.issparse(one):
        return scipy.sparse.hstack([abs(one - other), one.multiply(other)]).tocsr()
    return np.concatenate([np.abs(one - other), one * other], axis=-1)


class Features:
    """Makes the feature matrices of a task, reading each text once for all layers.

    Args:
        where: a checkpoint.
        layers: those that the rows "BERT" concatenate, as in `FeatureExtractor`.
        per_layer: whether each layer is to have a row of its own.
        **options: of the `BertFeaturizer`.

    Raises:
        ConfigError: there is no such layer.
    """

    def __init__(self, where, layers, per_layer, **options):
        config = open_checkpoint(where).config
        count = config.num_hidden_layers
        self._per_layer = per_layer
        numbers = layer_numbers(layers, count)
        self._read = layer_numbers("all", count) if per_layer else numbers
        self._chosen = [self._read.index(number) for number in numbers]
        self._featurizer = BertFeaturizer(
            where,
            layers=self._read,
            max_length=min(_MAX_LENGTH, config.max_position_embeddings),
            **options,
        )

    def rows(self, train, dev):
        """Yields (what is encoded, [matrix of the training set, matrix of the dev set])."""
        for name, options in _TFIDF.items():
            vectorizer = TfidfVectorizer(**options)
            vectorizer.fit([text for column in train for text in column])
            yield name, _vectors(vectorizer.transform, train, dev)
        states = _vectors(self._states, train, dev)
        yield "BERT", [self._concatenated(part) for part in states]
        if len(train) == 2:
            pairs = [list(zip(*split, strict=True)) for split in (train, dev)]
            yield "BERT, joint", [self._concatenated(self._states(part)) for part in pairs]
        if self._per_layer:
            for number in self._read:
                yield layer_row(number), [part[:, number] for part in states]

    def _states(self, texts):
        """Returns [N, k, H], the k layers that are read."""
        return self._featurizer.transform(texts).reshape(len(texts), len(self._read), -1)

    def _concatenated(self, states):
        return states[:, self._chosen].reshape(len(states), -1)


def layer_row(number):
    """Returns the name of the row of a single layer."""
    return f"BERT, layer {number}"


def _vectors(transform, *splits):
    """Returns an array for each split, pairs compared."""
    vectors = [[transform(column) for column in split] for split in splits]
    return [split[0] if len(split) == 1 else compare(*split) for split in vectors]


def score(task, x, y):
    """Fits the linear model, its strength chosen on a tenth of the training set; scores dev."""
    regression = task == "STS-B"
    if not scipy.sparse.issparse(x[0]):
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


def run(data, tasks, features, examples=None):
    """Fits and scores the linear models.

    Args:
        data: the folder of GLUE's tasks.
        tasks: names of them.
        features: a `Features`.
        examples: how many of the training set are drawn; None for all.

    Returns:
        task → what is encoded → name of the score → percent.
    """
    splits = {name: [read_split(data, name, split) for split in ("train", "dev")] for name in tasks}
    results = {}
    for name, ((train, y_train), (dev, y_dev)) in splits.items():
        results[name] = {}
        if examples is not None:
            drawn = np.random.default_rng(0).permutation(len(y_train))[:examples]
            train, y_train = [[column[n] for n in drawn] for column in train], y_train[drawn]
        for kind, x in features.rows(train, dev):
            scores = score(name, x, (y_train, y_dev))
            results[name][kind] = {k: round(100 * float(v), 2) for k, v in scores.items()}
            console.print(f"{name}, {kind}: {_shown(results[name][kind])}")
    return results


def _shown(scores):
    return ", ".join(f"{name} {value:.1f}" for name, value in scores.items())


def draw_layers(results, path):
    """Draws the first score of each task by layer, with those of TF-IDF as lines."""
    panels = []
    for task, rows in results.items():
        name = _SCORES[task][0]
        count = sum(kind.startswith(layer_row("")) for kind in rows)
        curve = {number: rows[layer_row(number)][name] for number in range(count)}
        baselines = {kind: rows[kind][name] for kind in _TFIDF}
        title = f"{task}, a linear model on each layer"
        panels.append(layer_curve.Panel(title, f"{name} on dev (%)", {"BERT": curve}, baselines))
    layer_curve.draw(panels, path)


def main(
    data: Annotated[Path, typer.Argument(help="The folder of GLUE's tasks.")],
    model: Annotated[str, typer.Argument(help="A checkpoint.")],
    task: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(_SCORES)}.")] = None,
    layers: Annotated[str, typer.Option(help="last4, all, or numbers with commas.")] = "last4",
    pooling: Annotated[str, typer.Option(help="Of BERT's states: mean, mean_max, cls, …")] = "mean",
    examples: Annotated[
        int | None, typer.Option(min=20, help="Training examples, drawn; by default all.")
    ] = None,
    per_layer: Annotated[
        bool, typer.Option("--per-layer", help="Score each layer, and draw them beside --report.")
    ] = False,
    precision: Annotated[
        str | None, typer.Option(help="A Keras dtype policy; by default, what is fastest here.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="A folder for what was computed.")] = None,
    report: Annotated[Path | None, typer.Option(help="A JSON file for the scores.")] = None,
):
    """Prints dev scores of BERT's features and of TF-IDF, from one run."""
    try:
        tasks = task or list(_SCORES)
        if unknown := [name for name in tasks if name not in _SCORES]:
            raise ConfigError(f"there is no task {unknown[0]!r} here: {', '.join(_SCORES)}")
        if per_layer and (report is None or report.suffix == ".png"):
            raise ConfigError("--per-layer draws beside --report: name a .json file with it")
        if report:
            with writing(report):  # now, not after all is computed
                report.parent.mkdir(parents=True, exist_ok=True)
        precision = precision or fast_precision()
        features = Features(
            model,
            _layers(layers),
            per_layer,
            pooling=pooling,
            dtype=precision,
            cache=cache and str(cache),
        )
        results = run(data, tasks, features, examples)
        if report:
            flat = {
                f"{name}, {kind}": scores
                for name, rows in results.items()
                for kind, scores in rows.items()
            }
            replace_text(report, json.dumps(flat, indent=2) + "\n")
        if per_layer:
            draw_layers(results, report.with_suffix(".png"))
    except BertError as error:
        console.print(f"error: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    table = Table("task", "features", "score", title=f"dev scores, {precision}")
    for name, rows in results.items():
        for kind, scores in rows.items():
            table.add_row(name, kind, _shown(scores))
    console.print(table)


def _layers(text):
    if text in ("last4", "all"):
        return text
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise ConfigError(f"--layers {text!r} is no list of numbers, such as 0,6,-1") from None


if __name__ == "__main__":
    typer.run(main)
