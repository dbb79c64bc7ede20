"""Scores as GLUE's leaderboard counts them, in percent."""

import warnings

import numpy as np

from keras_bert_ref.errors import InputError


def check_labelled(task, examples):
    """Raises InputError if an example of a task has no label, or there is none."""
    if not examples:
        raise InputError("there is nothing to score: no examples")
    unknown = sum(not task.is_labelled(example) for example in examples)
    if unknown:
        raise InputError(
            f"{unknown:,} of {len(examples):,} examples have no label, so that nothing can be "
            "scored; `predict` does without"
        )


def of_classes(true, predicted, positive=None):
    """Returns the scores of classes.

    Args:
        true: names of the classes.
        predicted: the same, as predicted.
        positive: the class whose F1 is wanted; None for none.

    Returns:
        `accuracy`, `matthews` (the correlation coefficient; 0 where one side has one class only),
        and `f1` with `positive`, in percent.
    """
    from sklearn import metrics

    found = {"accuracy": metrics.accuracy_score(true, predicted)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one class only: 0, as the leaderboard has it
        found["matthews"] = metrics.matthews_corrcoef(true, predicted)
        if positive is not None:
            hit = [[name == positive for name in names] for names in (true, predicted)]
            found["f1"] = metrics.f1_score(*hit, zero_division=0)
    return {name: 100 * float(value) for name, value in found.items()}


def of_numbers(true, predicted):
    """Returns the Pearson and the Spearman correlation, in percent.

    They are 0 where either side is constant, or has fewer than two values.
    """
    from scipy import stats

    if len(true) < 2 or np.ptp(true) == 0 or np.ptp(predicted) == 0:
        return {"pearson": 0.0, "spearman": 0.0}
    return {
        "pearson": 100 * float(stats.pearsonr(true, predicted)[0]),
        "spearman": 100 * float(stats.spearmanr(true, predicted)[0]),
    }
